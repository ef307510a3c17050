--- expect: MS0103 'math' has no 'randomseed'
local f = math.randomseed
return plan { f("x") }
