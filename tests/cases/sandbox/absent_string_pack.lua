--- expect: MS0103
local f = string.pack
return plan { f("x") }
