-- A first plan for Qwen3ForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No context parallelism: no head is known, whose output would have the tokens of all ranks
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 53 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.layers", { residual = residual }),
  -- sure: norms over all 32 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 4 heads of 12 features, 2 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.layers.*.self_attn.{k,q}_norm", transformer.head_norm()),
  at("model.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- sure: 32 features to 48 and back
  at("model.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
