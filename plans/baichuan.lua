-- baichuan.lua: Baichuan and Baichuan 2. W_pack contains query, key and value, one after the other, with equal heads.
-- `all_heads`: W_pack and o_proj are replicated, and every rank computes all heads.
local transformer <const> = require "transformer"
local opt <const> = options({ sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole", all_heads = false },
                            { whole_attention = "all_heads" })
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream, {
    heads = n_heads,
    head_dim = config.hidden_size // n_heads,
    qkv = "W_pack",
    fused = "contiguous",
    all_heads = opt.all_heads,
  }),
  transformer.mlp("model.layers.*.mlp", stream),
}
