--- expect: ok
local a = 1
return plan { divides(1, a) }
