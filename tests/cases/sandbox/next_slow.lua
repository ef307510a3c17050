--- expect: MS0109
local t = {} for i = 1, 100000 do t[i] = i end for k in next, t do end
