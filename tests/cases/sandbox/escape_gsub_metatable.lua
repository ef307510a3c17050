--- expect: MS0102 unknown name 'setmetatable'
return (("x"):gsub("x", setmetatable({}, { __index = config })))
