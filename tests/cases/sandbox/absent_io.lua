--- expect: MS0102 unknown name 'io'
local f = io
return plan { f("x") }
