--- expect: MS0109 more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 20000 do t[i] = i end while true do table.sort(t, function(a, b) return a > b end) end
