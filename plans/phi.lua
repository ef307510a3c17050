-- phi.lua: Phi-1 to Phi-2. One norm per layer, for attention and mlp in parallel; all linear layers have biases.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole" })
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  transformer.ends(stream, { norm = "final_layernorm" }),
  at("model.layers.*.input_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream, {
    heads = n_heads,
    kv_heads = config:get("num_key_value_heads", n_heads),
    out = "dense",
    norms = config:get("qk_layernorm", false) and "{q,k}_layernorm",
  }),
  transformer.mlp("model.layers.*.mlp", stream, { up = "fc1", down = "fc2" }),
}
