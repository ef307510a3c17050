--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s, t = ("x"):rep(1000000) .. "a", ("x"):rep(1000000) .. "b" while true do local less = s < t end
