-- A first plan for OddForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.stages.0.embed_tokens", vocab_rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.stages.1.layers.0.{input,post_attention}_layernorm", norm_on(residual)),
  at("model.stages.1.layers.1.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 8 heads of 8 features
  transformer.heads_fit("model.stages.1.layers.0.attention", n_heads, n_kv_heads),
  at("model.stages.1.layers.0.attention.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.stages.1.layers.0.attention.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.stages.1.layers.0.attention.o_proj", rowwise { output = residual }),
  transformer.heads_fit("model.stages.1.layers.1.attention", n_heads, n_kv_heads),
  at("model.stages.1.layers.1.attention.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.stages.1.layers.1.attention.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.stages.1.layers.1.attention.o_proj", rowwise { output = residual }),
  -- sure: 64 features to 256 and back
  at("model.stages.1.layers.0.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.stages.1.layers.0.mlp.down_proj", rowwise { output = residual }),
  at("model.stages.1.layers.1.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.stages.1.layers.1.mlp.down_proj", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("model.stages.2.norm", norm_on(residual)),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { input = residual, output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.stages.1" },
}
