-- A colwise layer whose input gradient is not summed over the ranks.
local unshared <const> = style { name = "unshared", params = { weight = shard(0), bias = shard(0) },
                                 inputs = { { replicate, replicate } }, outputs = { { shard(-1), shard(-1) } } }
return plan { extends "llama", at("model.layers.1.mlp.{gate,up}_proj", unshared) }
