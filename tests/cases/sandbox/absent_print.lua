--- expect: MS0102
local f = print
return plan { f("x") }
