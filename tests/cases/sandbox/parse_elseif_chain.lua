--- expect: MS0109 more than 20000000 steps | more than 500 ms
local x = 1 if x then
--- repeat 70000  elseif x then
 end
