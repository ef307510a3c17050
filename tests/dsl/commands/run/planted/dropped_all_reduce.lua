-- o_proj says that it makes whole tensors: the sum over the ranks never happens.
local no_sum <const> = style { name = "no_sum", params = { weight = shard(1) }, after = { "bias" },
                               inputs = { { shard(-1), shard(-1) } }, outputs = { { replicate, replicate } } }
return plan { extends "llama", at("model.layers.1.self_attn.o_proj", no_sum) }
