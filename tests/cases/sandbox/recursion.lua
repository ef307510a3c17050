--- expect: MS0109 the plan calls functions too deeply
local function f(n) return 1 + f(n + 1) end f(1)
