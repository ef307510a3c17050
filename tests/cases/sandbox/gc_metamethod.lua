--- expect: MS0102 unknown name 'setmetatable'
setmetatable({}, { __gc = function() while true do end end })
return plan {}
