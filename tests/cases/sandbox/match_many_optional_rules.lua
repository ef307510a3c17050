--- expect: MS0109 more than 48 MiB | more than 500 ms
local t = {} for i = 1, 20000 do t[i] = at("model.layers." .. i .. ".x", colwise {}) end return plan { optional(t) }
