--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s = ("x"):rep(1000000) s = s .. s .. s .. s .. s while true do local t = s .. "x" end
