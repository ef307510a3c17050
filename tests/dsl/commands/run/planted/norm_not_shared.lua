-- Under sequence parallelism a norm on pieces whose gradient nobody sums.
local alone <const> = style { name = "alone", params = { weight = replicate },
                              inputs = { { shard(1), shard(1) } }, outputs = { { shard(1), shard(1) } } }
return plan { extends "llama", at("model.layers.1.input_layernorm", alone) }
