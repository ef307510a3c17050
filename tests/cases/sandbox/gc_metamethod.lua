--- expect: MS0102
setmetatable({}, { __gc = function() while true do end end })
return plan {}
