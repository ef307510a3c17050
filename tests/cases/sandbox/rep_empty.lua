--- expect: ok
local s = string.rep("", 1e15 // 1 | 0) return plan { #s == 0 and divides(1, 1) }
