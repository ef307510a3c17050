--- model: yes
local rules = {}
for _, path in ipairs(model:find("model.layers.*.mlp.{gate,up}_proj")) do rules[#rules + 1] = at(path, colwise {}) end
local bad = model:find("model.[")
local vocab = model:shape("lm_haed.weight")[1]
return plan { rules, model:has("lm_head") and divides(3, model:shape("lm_head.weight")[1]), model.count, bad, vocab > 1 }
