--- expect: MS0103
local f = string.unpack
return plan { f("x") }
