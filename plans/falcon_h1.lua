-- falcon_h1.lua: Falcon-H1. Each layer has attention and a Mamba mixer side by side; the mixer is replicated.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local residual <const> = stream.residual
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  transformer.ends(stream, { norm = "final_layernorm" }),
  at("model.layers.*.{input,pre_ff}_layernorm", norm_on(residual)),
  transformer.attention("model.layers.*.self_attn", stream,
                        { heads = n_heads, kv_heads = config:get("num_key_value_heads", n_heads) }),
  at("model.layers.*.mamba", replicated { input = residual, output = residual }),
  at("model.layers.*.mamba.{conv1d,in_proj,out_proj}", replicated()),
  at("model.layers.*.mamba.norm", replicated(), { optional = true }),
  transformer.mlp("model.layers.*.feed_forward", stream),
}
