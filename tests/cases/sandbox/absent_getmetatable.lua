--- expect: MS0102
local f = getmetatable
return plan { f("x") }
