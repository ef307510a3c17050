--- expect: MS0109 more than 20000000 steps | more than 500 ms
local function f() return f() end f()
