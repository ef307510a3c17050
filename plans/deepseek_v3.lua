-- deepseek_v3.lua: DeepSeek-V2 to V3.2 and R1, GLM-4.7-Flash, GLM-5, MiniCPM3, Youtu. Queries, keys and values are
-- computed from small latents, which are replicated; the projections from the latents are split between heads. Layers
-- have an mlp or experts. An indexer, which chooses the keys, is replicated. Layers behind the others may predict
-- further tokens (MTP).
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
local indexed <const> = model:has(attention .. ".indexer.**")
-- A latent and its norm are replicated. The gradient is summed over the ranks at the latent, not at the hidden states.
local latent <const> = replicated { input = residual, output = shared }
local latent_norm <const> = style { name = "latent_norm", params = { weight = shared } }

return plan {
  api = 1,
  transformer.heads_fit(attention, n_heads),
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  transformer.further_tokens("model.layers.*", stream),
  config:get("q_lora_rank", false) and {
    at(attention .. ".q_a_proj", latent),
    at(attention .. ".q_a_layernorm", latent_norm),
    at(attention .. ".q_b_proj", colwise { input = shared, heads = n_heads }),
  },
  not config:get("q_lora_rank", false) and at(attention .. ".q_proj", colwise { input = residual, heads = n_heads }),
  -- The output also contains the rotary key that all heads share.
  at(attention .. ".kv_a_proj_with_mqa", latent),
  at(attention .. ".kv_a_layernorm", latent_norm),
  at(attention .. ".kv_b_proj", colwise { input = shared, heads = n_heads }),
  at(attention .. ".o_proj", transformer.block_end(stream)),
  indexed and {
    residual ~= replicate and at(attention .. ".indexer", prepare_input { { residual, replicate } }),
    at(attention .. ".{indexer.*,indexers_proj}", replicated(), { optional = true }),
  },
  model:has("model.layers.*.mlp.down_proj") and transformer.mlp("model.layers.*.mlp", stream),
  sparse and experts.block(sparse .. ".mlp", stream, {
    size = config:get("moe_intermediate_size", 0),
    shared = model:has(sparse .. ".mlp.shared_experts.down_proj") and "shared_experts",
    count = config:get("n_routed_experts", 0),
    expert_parallel = opt.expert_parallel,
  }),
}
