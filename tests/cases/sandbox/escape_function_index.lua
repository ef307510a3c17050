--- expect: MS0108 attempt to index a function value (global 'at')
return plan { at.__index }
