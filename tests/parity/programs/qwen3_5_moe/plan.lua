-- A first plan for Qwen3_5MoeForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: not everything in a layer is understood
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
  -- guess: 4 experts of 16 features, each expert sharded; assumed order: gate, then up; shared_expert_gate is taken
  -- for a gate on the shared mlp
  experts.block("model.layers.*.mlp", stream, { size = config.moe_intermediate_size, shared = "shared_expert" }),
  at("model.layers.*.mlp.shared_expert_gate", replicated()),
  -- replicated: not recognized by name or shape: replicated on every rank
  at("model.layers.*.linear_attn", replicated()),
  at("model.layers.*.linear_attn.{conv1d,norm,out_proj,in_proj_qkv,in_proj_z,in_proj_b,in_proj_a}", replicated()),
  -- guess: 4 heads of 8 features, 2 heads for keys and values; queries are 2 times as wide, by head: with a gate?
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { heads = n_kv_heads }),
  at("model.layers.*.self_attn.{q,k}_norm", transformer.head_norm()),
  at("model.layers.*.self_attn.o_proj", rowwise {}),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 48 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
