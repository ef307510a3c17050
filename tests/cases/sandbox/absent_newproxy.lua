--- expect: MS0102
local f = newproxy
return plan { f("x") }
