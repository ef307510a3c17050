--- expect: MS0109 more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 1000000 do table.insert(t, 1, i) end
