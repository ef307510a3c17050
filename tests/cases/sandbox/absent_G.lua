--- expect: MS0102
local f = _G
return plan { f("x") }
