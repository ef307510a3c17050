--- expect: MS0102 unknown name 'package'
local f = package
return plan { f("x") }
