-- A first plan for T5Gemma2ForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- "by columns": the features of a table are sharded, and its output gathered.
-- "by channels": the output channels of a convolution are sharded, and its output gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local text <const> = config.decoder
local n_heads <const> = text.num_attention_heads
local n_kv_heads <const> = text.num_key_value_heads

return plan {
  api = 1,
  -- by columns: an embedding that compares the ids with some of its own, or has the weight of one that does
  at("model.encoder.embed_tokens", transformer.table({ "eoi_embedding" })),
  at("model.decoder.embed_tokens", transformer.table({ "eoi_embedding" })),
  -- replicated: not recognized
  at("model.encoder.multi_modal_projector", replicated()),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.decoder.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.decoder.layers.*.{post_feedforward,post_self_attn,pre_feedforward,pre_self_attn}_layernorm",
     norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  transformer.heads_fit("model.decoder.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.decoder.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.decoder.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.decoder.layers.*.self_attn.{k,q}_norm", transformer.head_norm()),
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
  config.encoder.text_config.num_attention_heads % mesh.tp == 0 and (config.encoder.text_config.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.encoder.text_config.num_key_value_heads == 0) and {
    at("model.encoder.layers.*.self_attn.q_proj",
       colwise { input = residual, heads = config.encoder.text_config.num_attention_heads }),
    at("model.encoder.layers.*.self_attn.{k,v}_proj",
       colwise { input = residual, heads = config.encoder.text_config.num_key_value_heads }),
    at("model.encoder.layers.*.self_attn.{k,q}_norm", transformer.head_norm()),
    at("model.encoder.layers.*.self_attn.o_proj", rowwise { output = residual }),
  },
  -- sure: 64 features to 96 and back
  at("model.encoder.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.encoder.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.encoder.vision_tower.encoder.layers.*.layer_{norm1,norm2}", replicated()),
  -- sure: 4 heads of 16 features
  config.encoder.vision_config.num_attention_heads % mesh.tp == 0 and {
    at("model.encoder.vision_tower.encoder.layers.*.self_attn.{q,k,v}_proj",
       colwise { heads = config.encoder.vision_config.num_attention_heads }),
    at("model.encoder.vision_tower.encoder.layers.*.self_attn.out_proj", rowwise {}),
  },
  -- sure: 64 features to 96 and back
  at("model.encoder.vision_tower.encoder.layers.*.mlp.fc1", colwise {}),
  at("model.encoder.vision_tower.encoder.layers.*.mlp.fc2", rowwise {}),
  -- sure: the norm after the last layer
  at("model.encoder.norm", replicated()),
  at("model.decoder.norm", replicated()),
  -- by columns: the head, which has the weight of an embedding that is sharded by columns
  at("lm_head.out_proj", rowwise { input = replicate }),
  -- by columns: a table of positions or types
  at("model.encoder.vision_tower.embeddings.position_embedding", transformer.table()),
  -- by channels: a convolution with one group
  at("model.encoder.vision_tower.embeddings.patch_embedding", transformer.channels(2)),
  -- by rows: not recognized
  at("model.encoder.vision_tower.head.mlp.{fc1,fc2}", colwise { output = replicate }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.decoder.layers.*", "model.encoder.layers.*", "model.encoder.vision_tower.encoder.layers.*" } },
  -- replicated: 6 modules without a rule; the first is model.encoder.multi_modal_projector.mm_soft_emb_norm
  default(replicated()),
}
