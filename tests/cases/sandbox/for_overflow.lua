--- expect: MS0109
local n = 0 for i = math.maxinteger - 1, math.maxinteger do n = n + 1 end
if n == 2 then while true do end end
