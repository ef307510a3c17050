--- expect: MS0102 unknown name 'dofile'
local f = dofile
return plan { f("x") }
