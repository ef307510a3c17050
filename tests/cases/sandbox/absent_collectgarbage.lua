--- expect: MS0102
local f = collectgarbage
return plan { f("x") }
