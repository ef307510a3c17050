-- A first plan for BiasForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- No sequence parallelism: layers: the use of the bias of attention in a layer is unknown
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("embed_in", vocab_rowwise {}),
  -- sure: norms over all 64 features of the hidden states
  at("layers.*.input_layernorm", replicated()),
  -- replicated or by rows: attention is not sharded between heads: how attention uses the heads is unknown; other
  -- layers may use the output of this module, so attention is replicated in all layers
  at("layers.*.attention.{dense,query_key_value}", colwise { output = replicate }),
  at("layers.*.attention", replicated()),
  -- sure: 64 features to 256 and back
  at("layers.*.mlp.dense_h_to_4h", colwise {}),
  at("layers.*.mlp.dense_4h_to_h", rowwise {}),
  -- sure: the norm after the last layer
  at("final_layer_norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "layers.*" },
}
