--- expect: MS0101 unknown attribute 'forever'
local x <forever> = 1
