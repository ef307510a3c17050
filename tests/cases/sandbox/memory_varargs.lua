--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local function f(...) return f(1, ...) end f()
