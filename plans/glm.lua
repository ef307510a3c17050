-- glm.lua: GLM-4 and GLM-4-0414: Llama's attention, gate and up in one projection; GLM-4-0414 has two more norms.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole" })
local n_heads <const> = config.num_attention_heads
local later <const> = config:get("model_type", "") == "glm4"

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  later and at("model.layers.*.{post_self_attn,post_mlp}_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream,
                        { heads = n_heads, kv_heads = config:get("num_key_value_heads", n_heads) }),
  transformer.mlp("model.layers.*.mlp", stream, { fused = "contiguous", size = config.intermediate_size }),
}
