--- expect: MS0103 'table' has no field 'move'
local f = table.move
return plan { f("x") }
