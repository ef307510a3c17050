--- expect: MS0102
local f = utf8
return plan { f("x") }
