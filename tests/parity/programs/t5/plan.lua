-- A first plan for T5ForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: there is more than one stack of layers
local transformer <const> = require "transformer"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_heads

return plan {
  api = 1,
  -- sure: the embedding: its 48 rows are the vocabulary; ids whose row is on another rank give zeros
  at("shared", vocab_rowwise {}),
  at("encoder.embed_tokens", vocab_rowwise {}),
  at("decoder.embed_tokens", vocab_rowwise {}),
  -- sure: norms over all 32 features of the hidden states
  at("decoder.block.*.layer.0.layer_norm", replicated()),
  at("decoder.block.*.layer.1.layer_norm", replicated()),
  at("decoder.block.*.layer.2.layer_norm", replicated()),
  -- guess: 4 heads of 8 features; relative_attention_bias is assumed to be a table with one column per head
  transformer.heads_fit("decoder.block.0.layer.0.SelfAttention", n_heads),
  at("decoder.block.0.layer.0.SelfAttention.{q,k,v}", colwise { heads = n_heads }),
  at("decoder.block.*.layer.0.SelfAttention.relative_attention_bias",
     style { name = "head_table", params = { weight = shard(1) }, outputs = { { shard(-1), shard(-1) } }, heads = n_heads }),
  at("decoder.block.0.layer.0.SelfAttention.o", rowwise {}),
  -- sure: 4 heads of 8 features
  transformer.heads_fit("decoder.block.*.layer.1.EncDecAttention", n_heads),
  at("decoder.block.*.layer.1.EncDecAttention.{q,k,v}", colwise { heads = n_heads }),
  at("decoder.block.*.layer.1.EncDecAttention.o", rowwise {}),
  -- sure: 32 features to 48 and back
  at("decoder.block.*.layer.2.DenseReluDense.wi", colwise {}),
  at("decoder.block.*.layer.2.DenseReluDense.wo", rowwise {}),
  -- sure: 4 heads of 8 features
  transformer.heads_fit("decoder.block.1.layer.0.SelfAttention", n_heads),
  at("decoder.block.1.layer.0.SelfAttention.{q,k,v}", colwise { heads = n_heads }),
  at("decoder.block.1.layer.0.SelfAttention.o", rowwise {}),
  -- sure: norms over all 32 features of the hidden states
  at("encoder.block.*.layer.0.layer_norm", replicated()),
  at("encoder.block.*.layer.1.layer_norm", replicated()),
  -- guess: 4 heads of 8 features; relative_attention_bias is assumed to be a table with one column per head
  transformer.heads_fit("encoder.block.0.layer.0.SelfAttention", n_heads),
  at("encoder.block.0.layer.0.SelfAttention.{q,k,v}", colwise { heads = n_heads }),
  at("encoder.block.*.layer.0.SelfAttention.relative_attention_bias",
     style { name = "head_table", params = { weight = shard(1) }, outputs = { { shard(-1), shard(-1) } }, heads = n_heads }),
  at("encoder.block.0.layer.0.SelfAttention.o", rowwise {}),
  -- sure: 32 features to 48 and back
  at("encoder.block.*.layer.1.DenseReluDense.wi", colwise {}),
  at("encoder.block.*.layer.1.DenseReluDense.wo", rowwise {}),
  -- sure: 4 heads of 8 features
  transformer.heads_fit("encoder.block.1.layer.0.SelfAttention", n_heads),
  at("encoder.block.1.layer.0.SelfAttention.{q,k,v}", colwise { heads = n_heads }),
  at("encoder.block.1.layer.0.SelfAttention.o", rowwise {}),
  -- sure: the norm after the last layer
  at("decoder.final_layer_norm", replicated()),
  at("encoder.final_layer_norm", replicated()),
  -- sure: the head: logits over the 48 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "decoder.block.*", "encoder.block.*" } },
}
