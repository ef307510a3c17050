--- expect: MS0109
local t = {} for i = 1, 10000000 do t[i] = at("model.layers." .. i, colwise {}) end
