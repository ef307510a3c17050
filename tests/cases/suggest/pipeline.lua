-- A first plan for OddForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("0.word_embeddings", vocab_rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("{1..3}.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 8 heads of 8 features
  transformer.heads_fit("{1..3}.attention", n_heads, n_kv_heads),
  at("{1..3}.attention.q_proj", colwise { input = residual, heads = n_heads }),
  at("{1..3}.attention.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("{1..3}.attention.o_proj", rowwise { output = residual }),
  -- sure: 64 features to 256 and back
  at("{1..3}.mlp.{gate,up}_proj", colwise { input = residual }),
  at("{1..3}.mlp.down_proj", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("4.norm", norm_on(residual)),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("5.lm_head", colwise { input = residual, output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "{1..3}" },
}
