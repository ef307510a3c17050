--- expect: MS0108 table.concat: the result is longer than 1 MiB
local t = {} for i = 1, 100 do t[i] = ("x"):rep(100000) end return table.concat(t)
