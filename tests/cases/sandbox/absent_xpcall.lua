--- expect: MS0102
local f = xpcall
return plan { f("x") }
