--- expect: MS0102 unknown name 'loadfile'
local f = loadfile
return plan { f("x") }
