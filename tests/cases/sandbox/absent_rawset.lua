--- expect: MS0102 unknown name 'rawset'
local f = rawset
return plan { f("x") }
