--- expect: MS0108
local t = {} for i = 1, 100 do t[i] = ("x"):rep(100000) end return table.concat(t)
