--- expect: MS0108
local _ENV = {}
return plan {}
