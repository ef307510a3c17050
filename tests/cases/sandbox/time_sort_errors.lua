--- expect: MS0109 more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 1000 do t[i] = i end table.sort(t, function(a, b) while true do end end)
