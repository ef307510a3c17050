--- expect: MS0102
local f = rawset
return plan { f("x") }
