--- expect: MS0102 unknown name '_G'
local f = _G
return plan { f("x") }
