--- expect: MS0102
local f = debug
return plan { f("x") }
