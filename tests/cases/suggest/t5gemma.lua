-- A first plan for T5GemmaForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local text <const> = config.decoder
local n_heads <const> = text.num_attention_heads
local n_kv_heads <const> = text.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.decoder.embed_tokens", vocab_rowwise {}),
  at("model.encoder.embed_tokens", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.decoder.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.decoder.layers.*.{post_cross_attn,post_feedforward,post_self_attn,pre_cross_attn,pre_feedforward,pre_self_attn}_layernorm",
     norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  transformer.heads_fit("model.decoder.layers.*.cross_attn", n_heads, n_kv_heads),
  at("model.decoder.layers.*.cross_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.decoder.layers.*.cross_attn.{k,v}_proj", colwise { heads = n_kv_heads }),
  at("model.decoder.layers.*.cross_attn.o_proj", rowwise { output = residual }),
  transformer.heads_fit("model.decoder.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.decoder.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.decoder.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.decoder.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- sure: 64 features to 96 and back
  at("model.decoder.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.decoder.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.encoder.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.encoder.layers.*.{post_feedforward,post_self_attn,pre_feedforward,pre_self_attn}_layernorm",
     norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  config.encoder.num_attention_heads % mesh.tp == 0 and (config.encoder.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.encoder.num_key_value_heads == 0) and {
    at("model.encoder.layers.*.self_attn.q_proj",
       colwise { input = residual, heads = config.encoder.num_attention_heads }),
    at("model.encoder.layers.*.self_attn.{k,v}_proj",
       colwise { input = residual, heads = config.encoder.num_key_value_heads }),
    at("model.encoder.layers.*.self_attn.o_proj", rowwise { output = residual }),
  },
  -- sure: 64 features to 96 and back
  at("model.encoder.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.encoder.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("model.encoder.norm", replicated()),
  at("model.decoder.norm", replicated()),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head.out_proj", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.decoder.layers.*", "model.encoder.layers.*" } },
}
