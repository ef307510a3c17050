--- expect: MS0108
local s = ("xx"):rep(math.maxinteger)
