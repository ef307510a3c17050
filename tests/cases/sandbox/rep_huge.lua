--- expect: MS0108 string.rep: the result is longer than 1 MiB
local s = string.rep("x", 1073741824)
