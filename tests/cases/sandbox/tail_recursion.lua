--- expect: MS0109
local function f() return f() end f()
