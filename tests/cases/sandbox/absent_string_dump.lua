--- expect: MS0103 'string' has no field 'dump'
local f = string.dump
return plan { f("x") }
