--- expect: MS0102
local f = os
return plan { f("x") }
