-- A first plan for CrossedForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: model.layers: layers of cross-attention may be called between the layers
local transformer <const> = require "transformer"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.patch_embedding_projection", replicated()),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", replicated()),
  -- sure: 8 heads of 8 features, 4 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { heads = n_kv_heads }),
  at("model.layers.*.self_attn.o_proj", rowwise {}),
  -- sure: 64 features to 256 and back
  at("model.layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.layers.*.mlp.down_proj", rowwise {}),
  -- sure: norms over all 64 features of the hidden states
  at("model.cross_attn_layers.*.input_layernorm", replicated()),
  -- sure: 8 heads of 8 features, 4 heads for keys and values
  transformer.heads_fit("model.cross_attn_layers.*.cross_attn", n_heads, n_kv_heads),
  at("model.cross_attn_layers.*.cross_attn.q_proj", colwise { heads = n_heads }),
  at("model.cross_attn_layers.*.cross_attn.{k,v}_proj", colwise { heads = n_kv_heads }),
  at("model.cross_attn_layers.*.cross_attn.o_proj", rowwise {}),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.layers.*", "model.cross_attn_layers.*" } },
}
