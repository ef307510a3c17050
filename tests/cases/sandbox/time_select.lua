--- expect: MS0109 more than 20000000 steps | more than 500 ms
local function f(n, ...) if n == 0 then return select("#", ...) end return f(n - 1, n, ...) end while true do f(150) end
