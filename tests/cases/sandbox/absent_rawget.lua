--- expect: MS0102
local f = rawget
return plan { f("x") }
