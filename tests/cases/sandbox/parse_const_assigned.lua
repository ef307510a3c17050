--- expect: MS0101 attempt to assign to const variable 'x'
local x <const> = 1
x = 2
