--- expect: MS0108
local x <close> = {}
