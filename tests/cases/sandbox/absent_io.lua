--- expect: MS0102
local f = io
return plan { f("x") }
