--- expect: MS0102 unknown name 'getmetatable'
local f = getmetatable
return plan { f("x") }
