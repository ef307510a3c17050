--- expect: MS0108
local s = (""):rep(math.maxinteger, ("x"):rep(1000))
