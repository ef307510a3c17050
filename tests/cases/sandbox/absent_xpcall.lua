--- expect: MS0102 unknown name 'xpcall'
local f = xpcall
return plan { f("x") }
