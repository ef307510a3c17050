-- phi3.lua: Phi-3 and Phi-4. Query, key and value are one projection, gate and up another; each part is sharded alone.
-- `all_heads`: every rank computes all heads, from projections with sharded weights (two more reductions per layer).
local transformer <const> = require "transformer"
local opt <const> = options({ sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole", all_heads = false },
                            { whole_attention = "all_heads" })
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  opt.all_heads and {
    at("model.layers.*.self_attn.qkv_proj",
       stream.stable and colwise { input = stream.residual, output = replicate } or rowwise { input = stream.residual }),
    at("model.layers.*.self_attn.o_proj", colwise { input = replicate, output = stream.residual }),
  },
  not opt.all_heads and transformer.attention("model.layers.*.self_attn", stream, {
    heads = n_heads,
    kv_heads = config:get("num_key_value_heads", n_heads), window = transformer.window(),
    head_dim = config:get("head_dim", config.hidden_size // n_heads),
    fused = "contiguous",
  }),
  transformer.mlp("model.layers.*.mlp", stream, { fused = "contiguous", size = config.intermediate_size }),
}
