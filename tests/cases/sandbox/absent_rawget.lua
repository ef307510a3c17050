--- expect: MS0102 unknown name 'rawget'
local f = rawget
return plan { f("x") }
