--- expect: MS0102
local f = package
return plan { f("x") }
