-- deepseek_v3.lua: DeepSeek-V3 and R1. Queries, keys and values are computed from small latents, which every rank has
-- in full; the projections out of them are split between heads. The first layers have an mlp, the others experts.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options {
  sequence_parallel = false, loss_parallel = false, stable = false, expert_parallel = false,
}
local stream <const> = transformer.stream(opt)
local residual <const> = stream.residual
local n_heads <const> = config.num_attention_heads
local sparse <const> = experts.layers("model.layers", "mlp.gate")
local attention <const> = "model.layers.*.self_attn"
-- A latent and its norm are the same on every rank; the sum of its gradient runs over the latent, not the hidden states.
local latent <const> = replicated { input = residual, output = shared }
local latent_norm <const> = style { name = "latent_norm", params = { weight = shared } }

return plan {
  api = 1,
  transformer.heads_fit(attention, n_heads),
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  config:get("q_lora_rank", false) and {
    at(attention .. ".q_a_proj", latent),
    at(attention .. ".q_a_layernorm", latent_norm),
    at(attention .. ".q_b_proj", colwise { input = shared, heads = n_heads }),
  },
  not config:get("q_lora_rank", false) and at(attention .. ".q_proj", colwise { input = residual, heads = n_heads }),
  -- Its output also holds the one rotary key that all heads share.
  at(attention .. ".kv_a_proj_with_mqa", latent),
  at(attention .. ".kv_a_layernorm", latent_norm),
  at(attention .. ".kv_b_proj", colwise { input = shared, heads = n_heads }),
  at(attention .. ".o_proj", transformer.block_end(stream)),
  model:has("model.layers.*.mlp.down_proj") and transformer.mlp("model.layers.*.mlp", stream),
  sparse and experts.block(sparse .. ".mlp", stream, {
    size = config.moe_intermediate_size,
    shared = "shared_experts",
    count = config:get("n_routed_experts", 0),
    whole = opt.expert_parallel,
  }),
}
