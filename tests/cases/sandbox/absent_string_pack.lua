--- expect: MS0103 'string' has no field 'pack'
local f = string.pack
return plan { f("x") }
