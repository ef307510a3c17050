-- A first plan for InternLM2ForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No context parallelism: the block of attention.wqkv has other projections of heads than those of queries, keys
-- and values
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.tok_embeddings", vocab_rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{attention,ffn}_norm", norm_on(residual)),
  -- guess: 8 heads of 8 features, 4 heads for keys and values; assumed order: head by head (queries, key, value), as
  -- in other models with this name
  transformer.heads_fit("model.layers.*.attention", n_kv_heads),
  at("model.layers.*.attention.wqkv", colwise { input = residual, heads = n_kv_heads }),
  at("model.layers.*.attention.wo", rowwise { output = residual }),
  -- sure: 64 features to 176 and back
  at("model.layers.*.feed_forward.w{1,3}", colwise { input = residual }),
  at("model.layers.*.feed_forward.w2", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("model.norm", norm_on(residual)),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("output", colwise { input = residual, output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
