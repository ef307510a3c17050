--- expect: MS0109 function calls are nested too deeply
local function f(a, b) table.sort({ 1, 2 }, f) return a < b end f(1, 2)
