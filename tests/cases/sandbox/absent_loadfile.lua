--- expect: MS0102
local f = loadfile
return plan { f("x") }
