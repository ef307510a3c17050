--- expect: MS0109
local t = {} for i = 1, 134217728 do t[i] = i end
