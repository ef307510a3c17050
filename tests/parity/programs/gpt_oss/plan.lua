-- A first plan for GptOssForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: not everything in a layer is understood
local transformer <const> = require "transformer"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 48 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.rotary_emb", replicated()),
  -- sure: norms over all 32 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", replicated()),
  -- guess: 4 heads of 8 features, 2 heads for keys and values; sinks is assumed to hold one value per head
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { heads = n_kv_heads }),
  at("model.layers.*.self_attn.sinks", shard(0, { heads = n_heads })),
  at("model.layers.*.self_attn.o_proj", rowwise {}),
  -- replicated: the experts stay replicated: the stdlib has no block for experts of this form
  at("model.layers.*.mlp.{router,experts}", replicated()),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 48 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
