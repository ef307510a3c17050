--- expect: MS0103 'math' has no field 'random'
local f = math.random
return plan { f("x") }
