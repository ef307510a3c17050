--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s = ("a"):rep(1000000) while true do s:find("b$") end
