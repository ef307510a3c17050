-- A first plan for Lfm2ForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

-- A block that gets all tokens, since its modules are not understood, or mix tokens.
local gathered <const> = style {
  name = "gathered",
  inputs = { { residual, replicate } },
  outputs = { { replicate, residual } },
}

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.embedding_norm", replicated()),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.layers", { residual = residual }),
  at("model.layers.*.conv", gathered),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{ffn,operator}_norm", norm_on(residual)),
  -- sure: a convolution of 64 single channels, between two gates
  at("model.layers.*.conv.in_proj",
     transformer.fused_colwise { sizes = { config.hidden_size, config.hidden_size, config.hidden_size } }),
  at("model.layers.*.conv.conv.weight", shard(0)),
  at("model.layers.*.conv.out_proj", rowwise {}),
  -- sure: 64 features to 256 and back
  at("model.layers.*.feed_forward.w{1,3}", colwise { input = residual }),
  at("model.layers.*.feed_forward.w2", rowwise { output = residual }),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.layers.*.self_attn.{k,q}_layernorm", transformer.head_norm()),
  at("model.layers.*.self_attn.out_proj", rowwise { output = residual }),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
