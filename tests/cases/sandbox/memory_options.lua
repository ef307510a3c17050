--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 10000000 do t[i] = options { a = ("x"):rep(10000) .. i } end
