--- expect: MS0109
local t = {} for i = 1, 1000000 do table.insert(t, 1, i) end
