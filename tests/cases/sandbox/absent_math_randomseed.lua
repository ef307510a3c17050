--- expect: MS0103
local f = math.randomseed
return plan { f("x") }
