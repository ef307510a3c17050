--- expect: MS0102
local f = pcall
return plan { f("x") }
