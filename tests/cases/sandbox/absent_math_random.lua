--- expect: MS0103 'math' has no 'random'
local f = math.random
return plan { f("x") }
