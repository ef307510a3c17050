--- expect: MS0103 'math' has no field 'randomseed'
local f = math.randomseed
return plan { f("x") }
