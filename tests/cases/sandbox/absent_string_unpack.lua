--- expect: MS0103 'string' has no field 'unpack'
local f = string.unpack
return plan { f("x") }
