--- expect: MS0109 the plan has more than 10000 patterns to recompute
local r = recompute { "model.layers.*", "model.layers.*.mlp" } local t = {} for i = 1, 10000 do t[i] = r end return plan { t }
