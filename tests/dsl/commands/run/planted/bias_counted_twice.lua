-- The bias goes into every rank's term of the sum.
local early <const> = style { name = "early_bias", params = { weight = shard(1), bias = replicate },
                              inputs = { { shard(-1), shard(-1) } }, outputs = { { partial, replicate } } }
return plan { extends "llama", at("model.layers.0.mlp.down_proj", early) }
