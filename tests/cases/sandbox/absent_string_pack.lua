--- expect: MS0103 'string' has no 'pack'
local f = string.pack
return plan { f("x") }
