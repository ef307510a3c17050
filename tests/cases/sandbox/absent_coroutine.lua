--- expect: MS0102
local f = coroutine
return plan { f("x") }
