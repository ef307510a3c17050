--- expect: MS0103 'string' has no field 'dump'
local _ENV = { string = string }
return string.dump(function() end)
