-- gemma3.lua: Gemma 3, text alone. Four norms a layer, and norms on the query and key heads. The embedding's scale
-- multiplies every term of its sum.
local transformer <const> = require "transformer"
local residual <const> = options { sequence_parallel = false }.sequence_parallel and shard(1) or replicate

return plan {
  api = 1,
  extends "llama",
  at("model.layers.*.{pre,post}_feedforward_layernorm", norm_on(residual)),
  at("model.layers.*.self_attn.{q,k}_norm", transformer.head_norm()),
}
