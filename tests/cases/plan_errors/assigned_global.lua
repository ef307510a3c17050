rules = { at("lm_head", colwise {}) }
shard = 3
config.num_attention_heads = 1
mesh.tp = 1
string.rep = nil
local opt = options { a = 1 }
opt.a = 2
rules = {} -- reported once
return plan { rules }
