--- expect: MS0103 'string' has no 'dump'
local f = string.dump
return plan { f("x") }
