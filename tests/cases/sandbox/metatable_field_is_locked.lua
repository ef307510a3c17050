--- expect: MS0103 'string' has no field '__index'
return plan { ("").__index }
