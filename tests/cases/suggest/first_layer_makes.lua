-- A first plan for OddEncoder, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- No sequence parallelism: encoder.block: the use of layer.0.SelfAttention.k in a layer is unknown

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("encoder.embed_tokens", vocab_rowwise {}),
  at("shared", vocab_rowwise {}),
  -- sure: norms over all 64 features of the hidden states
  at("encoder.block.*.layer.0.layer_norm", replicated()),
  at("encoder.block.*.layer.1.layer_norm", replicated()),
  -- replicated or by rows: layer.0.SelfAttention is not sharded between heads: how rotary_table uses the heads is
  -- unknown; other layers may use the output of this module, so attention is replicated in all layers
  at("encoder.block.0.layer.0.SelfAttention.{k,o,q,v}", colwise { output = replicate }),
  at("encoder.block.*.layer.0.SelfAttention.rotary_table", replicated()),
  -- sure: 64 features to 256 and back
  at("encoder.block.*.layer.1.DenseReluDense.wi", colwise {}),
  at("encoder.block.*.layer.1.DenseReluDense.wo", rowwise {}),
  -- by rows: layer.0.SelfAttention is not sharded between heads: how rotary_table uses the heads is unknown; other
  -- layers may use the output of this module, so attention is replicated in all layers
  at("encoder.block.{1,2}.layer.0.SelfAttention.{k,o,q,v}", colwise { output = replicate }),
  -- sure: the norm after the last layer
  at("encoder.final_layer_norm", replicated()),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "encoder.block.*" },
}
