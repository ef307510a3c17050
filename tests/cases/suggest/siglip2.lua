-- A first plan for Lfm2VlForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local text <const> = config.text_config
local n_heads <const> = text.num_attention_heads
local n_kv_heads <const> = text.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.language_model.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.language_model.embedding_norm", replicated()),
  at("model.multi_modal_projector.layer_norm", replicated()),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.language_model.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.language_model.layers.*.{ffn,operator}_norm", norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  transformer.heads_fit("model.language_model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.language_model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.language_model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.language_model.layers.*.self_attn.{k,q}_layernorm", transformer.head_norm()),
  at("model.language_model.layers.*.self_attn.out_proj", rowwise { output = residual }),
  -- sure: 64 features to 256 and back
  at("model.language_model.layers.*.feed_forward.w{1,3}", colwise { input = residual }),
  at("model.language_model.layers.*.feed_forward.w2", rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.vision_tower.encoder.layers.*.layer_{norm1,norm2}", replicated()),
  -- sure: 4 heads of 16 features
  config.vision_config.num_attention_heads % mesh.tp == 0 and {
    at("model.vision_tower.encoder.layers.*.self_attn.{q,k,v}_proj",
       colwise { heads = config.vision_config.num_attention_heads }),
    at("model.vision_tower.encoder.layers.*.self_attn.out_proj", rowwise {}),
  },
  -- sure: 64 features to 96 and back
  at("model.vision_tower.encoder.layers.*.mlp.fc1", colwise {}),
  at("model.vision_tower.encoder.layers.*.mlp.fc2", rowwise {}),
  -- by rows: not recognized
  at("model.multi_modal_projector.linear_{1,2}", colwise { output = replicate }),
  at("model.vision_tower.head.mlp.{fc1,fc2}", colwise { output = replicate }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.language_model.layers.*", "model.vision_tower.encoder.layers.*" } },
  -- replicated: 7 modules without a rule; the first is model.vision_tower.embeddings.patch_embedding
  default(replicated()),
}
