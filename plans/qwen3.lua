-- qwen3.lua: Qwen3. Llama's modules, and norms on the query and key heads.
local transformer <const> = require "transformer"

return plan {
  api = 1,
  extends "llama",
  at("model.layers.*.self_attn.{q,k}_norm", transformer.head_norm()),
}
