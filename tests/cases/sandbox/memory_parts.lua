--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local n, t = {}, {} for i = 1, 10000 do n[i] = 1 end for i = 1, 10000000 do t[i] = packed(0, n) end
