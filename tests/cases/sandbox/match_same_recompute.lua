--- expect: MS0109 the plan has more than 10000 patterns in recompute sections | more than 20000000 steps | more than 500 ms
local r = recompute { "model.layers.*", "model.layers.*.mlp" } local t = {} for i = 1, 10000 do t[i] = r end return plan { t }
