-- olmo.lua: OLMo 2 and 3: norms after each block, and norms on queries and keys that take the mean over all heads.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.post_{attention,feedforward}_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream, {
    heads = n_heads,
    kv_heads = config:get("num_key_value_heads", n_heads),
    norms = "{q,k}_norm",
    over_all = true,
  }),
  transformer.mlp("model.layers.*.mlp", stream),
}
