--- expect: MS0102 unknown name 'setmetatable'
local f = setmetatable
return plan { f("x") }
