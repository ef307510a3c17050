--- expect: MS0102 unknown name 'rawlen'
local f = rawlen
return plan { f("x") }
