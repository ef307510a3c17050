--- expect: MS0108 attempt to call a nil value (global 'plan')
local _ENV = {}
return plan {}
