--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 10000 do t[i] = at(("x"):rep(4000) .. i, replicated()) end return plan { t }
