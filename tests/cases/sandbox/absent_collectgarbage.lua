--- expect: MS0102 unknown name 'collectgarbage'
local f = collectgarbage
return plan { f("x") }
