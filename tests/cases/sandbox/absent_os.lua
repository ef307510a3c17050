--- expect: MS0102 unknown name 'os'
local f = os
return plan { f("x") }
