--- expect: MS0101 cannot use '...' outside a vararg function near '...'
local function f() return ... end
