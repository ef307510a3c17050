--- expect: ok
local t, n = {}, 0 for i = 1, 1000 do t[i] = i end
table.sort(t, function() n = n + 1 return n % 3 == 0 end) return plan { #t == 1000 and divides(1, 1) }
