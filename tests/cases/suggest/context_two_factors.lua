-- A first plan for Transformer, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- Context parallelism: "ulysses_ring" on cp=2x2, since cp has two factors. What a rank sends for attention in a
-- step of one sequence of 32768 tokens: "ulysses_ring" sends 20.00 MiB. A ring needs attention that supports it:
-- the reference models, or a class with SetRing, and no fused kernel.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false, context = "ulysses_ring" }
local stream <const> = transformer.stream { sequence_parallel = opt.sequence_parallel, loss_parallel = opt.loss_parallel,
                                            stable = false, context = opt.context }
local residual <const> = stream.residual  -- the hidden states between blocks
local n_heads <const> = config.n_heads
local n_kv_heads <const> = config.n_kv_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("tok_embeddings", transformer.embedding(stream)),
  -- sure: norms over all 64 features of the hidden states
  at("layers.*.{attention,ffn}_norm", norm_on(residual)),
  -- sure: 8 heads of 8 features
  transformer.heads_fit("layers.*.attention", n_heads, n_kv_heads, stream),
  at("layers.*.attention.wq", transformer.column(stream, { input = residual, heads = n_heads, attention = true })),
  at("layers.*.attention.w{k,v}",
     transformer.column(stream, { input = residual, heads = n_kv_heads, attention = true })),
  at("layers.*.attention.wo", transformer.block_end(stream, shard(-1), n_heads, n_kv_heads, transformer.window())),
  -- sure: 64 features to 176 and back
  at("layers.*.feed_forward.w{1,3}", transformer.column(stream, { input = residual })),
  at("layers.*.feed_forward.w2", transformer.block_end(stream)),
  -- sure: the norm after the last layer
  at("norm", norm_on(residual)),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("output", transformer.column(stream, { input = residual, output = stream.logits })),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "layers.*" },
}
