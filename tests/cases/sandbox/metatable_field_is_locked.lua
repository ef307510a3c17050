--- expect: MS0103
return plan { ("").__index }
