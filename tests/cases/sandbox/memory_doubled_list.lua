--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local t = { 1 } while true do for i = 1, #t do t[#t + 1] = i end end
