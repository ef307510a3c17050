--- expect: MS0109
local t = {} for i = 1, 1000000 do t[i] = -i end table.sort(t) table.sort(t, function(a, b) return a > b end)
