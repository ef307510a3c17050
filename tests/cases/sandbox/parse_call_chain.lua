--- expect: MS0108 attempt to call a nil value (local 'f')
local f = nil return f
--- repeat 400000 ()
