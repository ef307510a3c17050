-- The block of experts says that it makes whole tensors: the sum over the ranks never happens.
local no_sum <const> = style { name = "no_sum", inputs = { { replicate, shared } }, outputs = { { replicate, replicate } } }
return plan { extends "qwen3_moe", at("model.layers.0.mlp", no_sum) }
