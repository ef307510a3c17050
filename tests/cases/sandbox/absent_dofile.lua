--- expect: MS0102
local f = dofile
return plan { f("x") }
