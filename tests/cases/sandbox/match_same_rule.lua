--- expect: MS0109 the plan has more than 10000 rules | more than 20000000 steps | more than 500 ms
local r = at("model.layers.*.mlp.up_proj", colwise {}) local t = {} for i = 1, 20000 do t[i] = r end return plan { t }
