--- expect: MS0102
local f = loadstring
return plan { f("x") }
