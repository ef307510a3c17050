--- expect: MS0103 'string' has no 'unpack'
local f = string.unpack
return plan { f("x") }
