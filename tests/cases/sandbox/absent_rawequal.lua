--- expect: MS0102
local f = rawequal
return plan { f("x") }
