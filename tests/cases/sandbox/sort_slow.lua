--- expect: MS0109 more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 1000000 do t[i] = -i end table.sort(t) table.sort(t, function(a, b) return a > b end)
