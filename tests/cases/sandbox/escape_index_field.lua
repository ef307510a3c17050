--- expect: ok
local t = { __index = function() while true do end end }
return plan { t.x == nil and divides(1, 1) }
