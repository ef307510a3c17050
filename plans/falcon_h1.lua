-- falcon_h1.lua: Falcon-H1. Each layer has attention and a Mamba mixer side by side. `mamba_heads`: true: the heads of
-- the mixer are sharded (the forward of the model must support a subset of heads); false: its projections are sharded
-- and gathered, and every rank computes all heads.
local transformer <const> = require "transformer"
local mixers <const> = require "mixers"
local opt <const> = options { sequence_parallel = false, loss_parallel = false, stable = false, mamba_heads = false }
local stream <const> = transformer.stream(opt)
local residual <const> = stream.residual
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  transformer.ends(stream, { norm = "final_layernorm" }),
  at("model.layers.*.{input,pre_ff}_layernorm", norm_on(residual)),
  transformer.attention("model.layers.*.self_attn", stream,
                        { heads = n_heads, kv_heads = config:get("num_key_value_heads", n_heads) }),
  mixers.mamba2("model.layers.*.mamba", stream, {
    heads = config:get("mamba_n_heads", 128),
    groups = config:get("mamba_n_groups", 1),
    state = config:get("mamba_d_state", 256),
    norm = model:has("model.layers.*.mamba.norm") and "norm",
    by_heads = opt.mamba_heads,
  }),
  transformer.mlp("model.layers.*.feed_forward", stream),
}
