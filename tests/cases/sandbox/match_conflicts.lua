--- expect: MS0204 two rules claim 'model.layers.0.mlp.up_proj'
local r = at("model.layers.*.mlp.up_proj", colwise {}) local t = {} for i = 1, 5000 do t[i] = r end return plan { t }
