-- qwen3_moe.lua: Qwen3 with experts. Qwen3's attention; a layer has experts or an mlp.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options {
  sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole", expert_parallel = false,
  exchange = false,
}
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads
local sparse <const> = experts.layers("model.layers", "mlp.gate")

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream,
                        { heads = n_heads, kv_heads = config:get("num_key_value_heads", n_heads), norms = "{q,k}_norm", window = transformer.window() }),
  model:has("model.layers.*.mlp.down_proj") and transformer.mlp("model.layers.*.mlp", stream),
  sparse and experts.block(sparse .. ".mlp", stream, { size = config.moe_intermediate_size,
                  count = config:get("num_local_experts", config:get("num_experts", 0)), expert_parallel = opt.expert_parallel,
                  parallel = opt.exchange and "exchange" or nil }),
}
