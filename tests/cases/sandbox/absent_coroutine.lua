--- expect: MS0102 unknown name 'coroutine'
local f = coroutine
return plan { f("x") }
