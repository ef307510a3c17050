--- expect: MS0103
local f = string.dump
return plan { f("x") }
