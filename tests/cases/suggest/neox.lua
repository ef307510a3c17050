-- A first plan for GPTNeoXForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("gpt_neox.embed_in", vocab_rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("gpt_neox.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- guess: 8 heads of 8 features; assumed order: head by head (queries, key, value), as in other models with this
  -- name
  transformer.heads_fit("gpt_neox.layers.*.attention", n_heads),
  at("gpt_neox.layers.*.attention.query_key_value", colwise { input = residual, heads = n_heads }),
  at("gpt_neox.layers.*.attention.dense", rowwise { output = residual }),
  -- sure: 64 features to 256 and back
  at("gpt_neox.layers.*.mlp.dense_h_to_4h", colwise { input = residual }),
  at("gpt_neox.layers.*.mlp.dense_4h_to_h", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("gpt_neox.final_layer_norm", norm_on(residual)),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("embed_out", colwise { input = residual, output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "gpt_neox.layers.*" },
}
