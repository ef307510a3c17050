--- expect: MS0102
local f = warn
return plan { f("x") }
