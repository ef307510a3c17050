--- expect: MS0108 string.rep: the result is longer than 1 MiB
local s = (""):rep(math.maxinteger, ("x"):rep(1000))
