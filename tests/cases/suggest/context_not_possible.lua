-- A first plan for Transformer, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No context parallelism: "ulysses" is not possible: query heads of layers.*.attention over tp=1 and cp=16: 16
-- does not divide 8; "ring" sends 22.50 MiB
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.n_heads
local n_kv_heads <const> = config.n_kv_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("tok_embeddings", vocab_rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("layers.*.{attention,ffn}_norm", norm_on(residual)),
  -- sure: 8 heads of 8 features, 4 heads for keys and values
  transformer.heads_fit("layers.*.attention", n_heads, n_kv_heads),
  at("layers.*.attention.wq", colwise { input = residual, heads = n_heads }),
  at("layers.*.attention.w{k,v}", colwise { input = residual, heads = n_kv_heads }),
  at("layers.*.attention.wo", rowwise { output = residual }),
  -- sure: 64 features to 176 and back
  at("layers.*.feed_forward.w{1,3}", colwise { input = residual }),
  at("layers.*.feed_forward.w2", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("norm", norm_on(residual)),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("output", colwise { input = residual, output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "layers.*" },
}
