--- expect: MS0102 unknown name 'loadstring'
local f = loadstring
return plan { f("x") }
