-- A first plan for OddForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare numbers before you rely on it.
-- No sequence parallelism: the use of 4 is unknown with the sequence
local transformer <const> = require "transformer"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- guess: the embedding: its 96 rows are the vocabulary; ids of rows that another rank has count as zero
  at("0", vocab_rowwise {}),
  -- replicated: not recognized
  at("4", replicated()),
  -- sure: norms over all 64 features of the hidden states
  at("{1..3}.{input,post_attention}_layernorm", replicated()),
  -- sure: 8 heads of 8 features
  transformer.heads_fit("{1..3}.attention", n_heads, n_kv_heads),
  at("{1..3}.attention.q_proj", colwise { heads = n_heads }),
  at("{1..3}.attention.{k,v}_proj", colwise { heads = n_kv_heads }),
  at("{1..3}.attention.o_proj", rowwise {}),
  -- sure: 64 features to 256 and back
  at("{1..3}.mlp.{gate,up}_proj", colwise {}),
  at("{1..3}.mlp.down_proj", rowwise {}),
  -- guess: the head: logits of 96 tokens
  at("5", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "{1..3}" },
}
