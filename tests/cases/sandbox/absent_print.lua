--- expect: MS0102 unknown name 'print'
local f = print
return plan { f("x") }
