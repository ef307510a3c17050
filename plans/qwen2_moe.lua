-- qwen2_moe.lua: Qwen2 with experts. Qwen2's attention; a layer has experts and a shared expert, or an mlp.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options {
  sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole", expert_parallel = false,
  exchange = false,
}
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads
local sparse <const> = experts.layers("model.layers", "mlp.gate")
-- Without layer_types, only some layers have the window.
local window <const> = config:get("layer_types", false) and transformer.window() or nil

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream,
                        { heads = n_heads, kv_heads = config:get("num_key_value_heads", n_heads), window = window }),
  model:has("model.layers.*.mlp.down_proj") and transformer.mlp("model.layers.*.mlp", stream),
  sparse and experts.block(sparse .. ".mlp", stream, { size = config:get("moe_intermediate_size", 1408),
                  shared = "shared_expert", shared_gate = "shared_expert_gate",
                  count = config:get("num_local_experts", config:get("num_experts", 60)),
                  per_token = config:get("num_experts_per_tok", 4), expert_parallel = opt.expert_parallel,
                  parallel = opt.exchange and "exchange" or nil }),
}
