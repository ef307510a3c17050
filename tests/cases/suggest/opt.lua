-- A first plan for OPTForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by columns": the features of a table are sharded, and its output gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.decoder.embed_tokens", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.decoder.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.decoder.layers.*.{final,self_attn}_layer_norm", norm_on(residual)),
  -- sure: 8 heads of 8 features
  transformer.heads_fit("model.decoder.layers.*.self_attn", n_heads),
  at("model.decoder.layers.*.self_attn.{q,k,v}_proj", colwise { input = residual, heads = n_heads }),
  at("model.decoder.layers.*.self_attn.out_proj", rowwise { output = residual }),
  -- sure: 64 features to 256 and back
  at("model.decoder.layers.*.fc1", colwise { input = residual }),
  at("model.decoder.layers.*.fc2", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("model.decoder.final_layer_norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- by columns: a table of positions or types
  at("model.decoder.embed_positions", transformer.table()),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.decoder.layers.*" },
}
