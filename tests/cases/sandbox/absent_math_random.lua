--- expect: MS0103
local f = math.random
return plan { f("x") }
