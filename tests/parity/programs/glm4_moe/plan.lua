-- A first plan for Glm4MoeForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: the use of model.rotary_emb is unknown with the sequence
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local stream <const> = { residual = replicate, logits = logits, stable = false }
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 48 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.rotary_emb", replicated()),
  -- sure: norms over all 32 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", replicated()),
  -- sure: 4 heads of 8 features, 2 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { heads = n_kv_heads }),
  at("model.layers.*.self_attn.o_proj", rowwise {}),
  -- sure: 32 features to 48 and back
  at("model.layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.layers.*.mlp.down_proj", rowwise {}),
  -- guess: 4 experts of 16 features, each expert sharded; assumed order: gate, then up
  experts.block("model.layers.1.mlp", stream, { size = config.moe_intermediate_size, shared = "shared_experts" }),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 48 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
