--- expect: MS0109 more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 100000 do t[i] = i end while #t > 0 do table.remove(t, 1) end
