--- expect: MS0102 unknown name 'rawequal'
local f = rawequal
return plan { f("x") }
