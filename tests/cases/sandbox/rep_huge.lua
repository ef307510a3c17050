--- expect: MS0108
local s = string.rep("x", 1073741824)
