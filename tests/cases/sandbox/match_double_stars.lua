--- expect: MS0202 matches no module
return plan { at(("**."):rep(1000) .. "x", colwise {}) }
