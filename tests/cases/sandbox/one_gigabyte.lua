--- expect: MS0109 more than 48 MiB | more than 500 ms
local t = {} for i = 1, 134217728 do t[i] = i end
