--- expect: MS0103 'string' has no '__index'
return plan { ("").__index }
