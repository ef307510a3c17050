--- expect: MS0102
local f = rawlen
return plan { f("x") }
