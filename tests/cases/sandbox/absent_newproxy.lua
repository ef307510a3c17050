--- expect: MS0102 unknown name 'newproxy'
local f = newproxy
return plan { f("x") }
