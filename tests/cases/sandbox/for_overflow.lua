--- expect: MS0109 more than 20000000 steps | more than 500 ms
local n = 0 for i = math.maxinteger - 1, math.maxinteger do n = n + 1 end
if n == 2 then while true do end end
