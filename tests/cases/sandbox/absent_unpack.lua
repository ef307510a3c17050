--- expect: MS0102
local f = unpack
return plan { f("x") }
