--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s, p = ("a"):rep(1000000), ("a"):rep(1000) .. "b" while true do s:find(p, 1, true) end
