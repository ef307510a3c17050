-- A first plan for LongT5ForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_heads

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("decoder.embed_tokens", vocab_rowwise {}),
  at("encoder.embed_tokens", vocab_rowwise {}),
  at("shared", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("decoder.block", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("decoder.block.*.layer.0.layer_norm", norm_on(residual)),
  at("decoder.block.*.layer.1.layer_norm", norm_on(residual)),
  at("decoder.block.*.layer.2.layer_norm", norm_on(residual)),
  -- sure: 4 heads of 16 features
  transformer.heads_fit("decoder.block.*.layer.0.SelfAttention", n_heads),
  at("decoder.block.*.layer.0.SelfAttention.{q,k,v}", colwise { input = residual, heads = n_heads }),
  at("decoder.block.*.layer.0.SelfAttention.relative_attention_bias",
     style { name = "head_table", params = { weight = shard(1) }, outputs = { { shard(-1), shard(-1) } }, heads = n_heads }),
  at("decoder.block.*.layer.0.SelfAttention.o", rowwise { output = residual }),
  transformer.heads_fit("decoder.block.*.layer.1.EncDecAttention", n_heads),
  at("decoder.block.*.layer.1.EncDecAttention.q", colwise { input = residual, heads = n_heads }),
  at("decoder.block.*.layer.1.EncDecAttention.{k,v}", colwise { heads = n_heads }),
  at("decoder.block.*.layer.1.EncDecAttention.o", rowwise { output = residual }),
  -- sure: 64 features to 96 and back
  at("decoder.block.*.layer.2.DenseReluDense.wi", colwise { input = residual }),
  at("decoder.block.*.layer.2.DenseReluDense.wo", rowwise { output = residual }),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("encoder.block", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("encoder.block.*.layer.0.layer_norm", norm_on(residual)),
  at("encoder.block.*.layer.1.layer_norm", norm_on(residual)),
  -- sure: 4 heads of 16 features
  transformer.heads_fit("encoder.block.*.layer.0.LocalSelfAttention", n_heads),
  at("encoder.block.*.layer.0.LocalSelfAttention.{q,k,v}", colwise { input = residual, heads = n_heads }),
  at("encoder.block.*.layer.0.LocalSelfAttention.relative_attention_bias",
     style { name = "head_table", params = { weight = shard(1) }, outputs = { { shard(-1), shard(-1) } }, heads = n_heads }),
  at("encoder.block.*.layer.0.LocalSelfAttention.o", rowwise { output = residual }),
  -- sure: 64 features to 96 and back
  at("encoder.block.*.layer.1.DenseReluDense.wi", colwise { input = residual }),
  at("encoder.block.*.layer.1.DenseReluDense.wo", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("encoder.final_layer_norm", replicated()),
  at("decoder.final_layer_norm", replicated()),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "decoder.block.*", "encoder.block.*" } },
}
