-- A first plan for BertForMaskedLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare numbers before you rely on it.
-- No sequence parallelism: the use of bert.embeddings.LayerNorm is unknown with the sequence
local transformer <const> = require "transformer"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids of rows that another rank has count as zero
  at("bert.embeddings.word_embeddings", vocab_rowwise {}),
  -- replicated: not recognized
  at("bert.embeddings.{LayerNorm,position_embeddings,token_type_embeddings}", replicated()),
  -- sure: norms over all 64 features of the hidden states
  at("bert.encoder.layer.*.attention.output.LayerNorm", replicated()),
  at("bert.encoder.layer.*.output.LayerNorm", replicated()),
  -- sure: 8 heads of 8 features
  transformer.heads_fit("bert.encoder.layer.*.attention.self", n_heads),
  at("bert.encoder.layer.*.attention.self.{query,key,value}", colwise { heads = n_heads }),
  at("bert.encoder.layer.*.attention.output.dense", rowwise {}),
  -- sure: 64 features to 256 and back
  at("bert.encoder.layer.*.intermediate.dense", colwise {}),
  at("bert.encoder.layer.*.output.dense", rowwise {}),
  -- guess: the head: logits of 96 tokens
  at("cls.predictions.decoder", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "bert.encoder.layer.*" },
  -- replicated: 4 modules without a rule, the first one bert.pooler.dense
  default(replicated()),
}
