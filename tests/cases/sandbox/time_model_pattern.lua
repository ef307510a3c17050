--- expect: MS0202 'x' matches no module
return plan { at(model:find(("**."):rep(1000) .. "x")[1] or "x", replicated()) }
