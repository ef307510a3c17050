--- expect: MS0102 unknown name 'load'
local f = load
return plan { f("x") }
