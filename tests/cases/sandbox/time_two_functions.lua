--- expect: MS0109 more than 20000000 steps | more than 500 ms
local f, g function f() return g() end function g() return f() end f()
