-- A first plan for GptOssForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

-- A block that gets all tokens, since its modules are not understood.
local gathered <const> = style {
  name = "gathered",
  inputs = { { residual, replicate } },
  outputs = { { replicate, residual } },
}

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.layers", { residual = residual }),
  at("model.layers.*.mlp", gathered),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- guess: 8 heads of 16 features, 2 heads for keys and values; sinks is assumed to hold one value per head
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.layers.*.self_attn.sinks", shard(0, { heads = n_heads })),
  at("model.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- replicated: the experts are not sharded: the stdlib has no block for experts of this form
  at("model.layers.*.mlp.{experts,router}", replicated()),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
