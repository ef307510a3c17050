--- expect: MS0102 unknown name 'debug'
local f = debug
return plan { f("x") }
