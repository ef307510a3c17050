--- expect: MS0102 unknown name 'utf8'
local f = utf8
return plan { f("x") }
