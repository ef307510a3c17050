--- expect: MS0102
local f = load
return plan { f("x") }
