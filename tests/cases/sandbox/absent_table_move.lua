--- expect: MS0103 'table' has no 'move'
local f = table.move
return plan { f("x") }
