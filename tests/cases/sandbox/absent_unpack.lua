--- expect: MS0102 unknown name 'unpack'
local f = unpack
return plan { f("x") }
