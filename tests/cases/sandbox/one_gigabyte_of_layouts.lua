--- expect: MS0109 more than 48 MiB | more than 500 ms
local t = {} for i = 1, 10000000 do t[i] = packed(0, { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }) end
