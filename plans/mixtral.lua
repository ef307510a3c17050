-- mixtral.lua: Mixtral. Llama's attention; every layer has experts in place of an mlp.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options {
  sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole", expert_parallel = false,
  exchange = false,
}
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads
local listed <const> = model:has("model.layers.0.block_sparse_moe.gate")

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream,
                        { heads = n_heads, kv_heads = config:get("num_key_value_heads", n_heads), window = transformer.window() }),
  experts.block(listed and "model.layers.*.block_sparse_moe" or "model.layers.*.mlp", stream,
                { size = config.intermediate_size, up = listed and "{w1,w3}", down = listed and "w2",
                  count = config:get("num_local_experts", 0), expert_parallel = opt.expert_parallel,
                  parallel = opt.exchange and "exchange" or nil }),
}
