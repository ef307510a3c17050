--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s = ("x"):rep(1000000) for i = 1, 3 do s = s .. s end local a, b = s .. "y", s .. "z" while true do local same = a == b end
