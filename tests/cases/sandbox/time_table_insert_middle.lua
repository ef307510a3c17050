--- expect: MS0109 more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 50000 do t[i] = i end while true do table.insert(t, 2, 0) table.remove(t, 2) end
