-- nemotron_labs_diffusion.lua: Nemotron-Labs-Diffusion: Ministral 3's decoder as `encoder`, with a diffusion head.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  transformer.ends(stream, { prefix = "encoder", head = "diffusion_head" }),
  at("encoder.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention("encoder.layers.*.self_attn", stream,
                        { heads = n_heads, kv_heads = config:get("num_key_value_heads", n_heads) }),
  transformer.mlp("encoder.layers.*.mlp", stream),
}
