-- A first plan for BertForMaskedLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- "by columns": the features of a table are sharded, and its output gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("bert.embeddings.word_embeddings", vocab_rowwise {}),
  -- replicated: not recognized
  at("bert.embeddings.{LayerNorm,token_type_embeddings}", replicated()),
  at("cls.predictions.transform.LayerNorm", replicated()),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("bert.encoder.layer", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("bert.encoder.layer.*.attention.output.LayerNorm", norm_on(residual)),
  at("bert.encoder.layer.*.output.LayerNorm", norm_on(residual)),
  -- sure: 8 heads of 8 features
  transformer.heads_fit("bert.encoder.layer.*.attention.self", n_heads),
  at("bert.encoder.layer.*.attention.self.{query,key,value}", colwise { input = residual, heads = n_heads }),
  at("bert.encoder.layer.*.attention.output.dense", rowwise { output = residual }),
  -- sure: 64 features to 256 and back
  at("bert.encoder.layer.*.intermediate.dense", colwise { input = residual }),
  at("bert.encoder.layer.*.output.dense", rowwise { output = residual }),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("cls.predictions.decoder", colwise { output = logits }),
  -- by columns: a table of positions or types
  at("bert.embeddings.position_embeddings", transformer.table()),
  -- by rows: not recognized
  at("bert.pooler.dense", colwise { output = replicate }),
  at("cls.predictions.transform.dense", colwise { output = replicate }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "bert.encoder.layer.*" },
  -- replicated: 1 module without a rule; the first is cls.predictions
  default(replicated()),
}
