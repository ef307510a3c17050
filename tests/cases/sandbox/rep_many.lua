--- expect: MS0109 more than 48 MiB | more than 500 ms
local t = {} for i = 1, 100000 do t[#t + 1] = string.rep("abc" .. i, 100000) end
