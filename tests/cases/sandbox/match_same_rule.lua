--- expect: MS0109 the plan has more than 10000 rules
local r = at("model.layers.*.mlp.up_proj", colwise {}) local t = {} for i = 1, 20000 do t[i] = r end return plan { t }
