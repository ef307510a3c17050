--- expect: MS0109 more than 48 MiB | more than 500 ms
local function f(n) return 1 + f(n + 1) end f(1)
