--- expect: MS0102
local f = setmetatable
return plan { f("x") }
