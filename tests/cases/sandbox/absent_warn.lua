--- expect: MS0102 unknown name 'warn'
local f = warn
return plan { f("x") }
