--- expect: MS0102 unknown name 'pcall'
local f = pcall
return plan { f("x") }
