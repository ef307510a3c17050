--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s = ("x"):rep(1000000) for i = 1, 4 do s = s .. s end local t = s .. "y" while true do local less = s < t end
