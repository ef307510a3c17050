--- expect: MS0103
local f = table.move
return plan { f("x") }
