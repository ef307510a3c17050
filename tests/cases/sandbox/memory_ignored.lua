--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local s = ("x"):rep(100000) local t = {} for i = 1, 10000000 do t[i] = fsdp { ignore = s } end
