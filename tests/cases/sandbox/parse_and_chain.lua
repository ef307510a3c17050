--- expect: MS0109 more than 20000000 steps | more than 500 ms
local x = 1 return x
--- repeat 170000  and x
