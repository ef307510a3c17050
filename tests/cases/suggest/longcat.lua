-- A first plan for LongcatFlashForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local stream <const> = { residual = residual, logits = logits, stable = false }
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.input_layernorm.{0,1}", norm_on(residual)),
  at("model.layers.*.post_attention_layernorm.{0,1}", norm_on(residual)),
  -- sure: 4 heads, computed from latents of 16 features that are full on every rank
  transformer.heads_fit("model.layers.*.self_attn.0", n_heads),
  at("model.layers.*.self_attn.0.{kv_a_proj_with_mqa,q_a_proj}", replicated { input = residual, output = shared }),
  at("model.layers.*.self_attn.0.{kv,q}_a_layernorm", style { name = "summed", params = { weight = shared } }),
  at("model.layers.*.self_attn.0.{kv,q}_b_proj", colwise { input = shared, heads = n_heads }),
  at("model.layers.*.self_attn.0.o_proj", rowwise { output = residual }),
  transformer.heads_fit("model.layers.*.self_attn.1", n_heads),
  at("model.layers.*.self_attn.1.{kv_a_proj_with_mqa,q_a_proj}", replicated { input = residual, output = shared }),
  at("model.layers.*.self_attn.1.{kv,q}_a_layernorm", style { name = "summed", params = { weight = shared } }),
  at("model.layers.*.self_attn.1.{kv,q}_b_proj", colwise { input = shared, heads = n_heads }),
  at("model.layers.*.self_attn.1.o_proj", rowwise { output = residual }),
  -- sure: 4 experts of 32 features, each expert sharded; 2 further experts return their tokens, of which each rank
  -- adds a fraction
  experts.block("model.layers.*.mlp", stream, { identity = "identity_expert", gate = "router.classifier" }),
  at("model.layers.*.mlp.router.e_score_correction_bias", replicate),
  -- sure: 64 features to 96 and back
  at("model.layers.*.mlps.0.{gate,up}_proj", colwise { input = residual }),
  at("model.layers.*.mlps.0.down_proj", rowwise { output = residual }),
  at("model.layers.*.mlps.1.{gate,up}_proj", colwise { input = residual }),
  at("model.layers.*.mlps.1.down_proj", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("model.norm", norm_on(residual)),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head", colwise { input = residual, output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
