-- A first plan for SomeForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- "by channels": the output channels of a convolution are sharded, and its output gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local text <const> = config.text_config
local n_heads <const> = text.num_attention_heads
local n_kv_heads <const> = text.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("language_model.model.embed_tokens", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("language_model.model.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("language_model.model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 8 heads of 8 features, 4 heads for keys and values
  transformer.heads_fit("language_model.model.layers.*.self_attn", n_heads, n_kv_heads),
  at("language_model.model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("language_model.model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("language_model.model.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- sure: 64 features to 160 and back
  at("language_model.model.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("language_model.model.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("vision_tower.encoder.layers.*.layer_{norm1,norm2}", replicated()),
  -- guess: 4 heads of 16 features; assumed order: all queries, all keys, all values
  config.vision_config.num_attention_heads % mesh.tp == 0 and {
    at("vision_tower.encoder.layers.*.self_attn.qkv",
       transformer.fused_colwise { sizes = { 64, 64, 64 }, heads = {
         config.vision_config.num_attention_heads,
         config.vision_config.num_attention_heads,
         config.vision_config.num_attention_heads,
       } }),
    at("vision_tower.encoder.layers.*.self_attn.proj", rowwise {}),
  },
  -- sure: 64 features to 128 and back
  at("vision_tower.encoder.layers.*.mlp.fc1", colwise {}),
  at("vision_tower.encoder.layers.*.mlp.fc2", rowwise {}),
  -- sure: the norm after the last layer
  at("language_model.model.norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("language_model.lm_head", colwise { output = logits }),
  -- by rows: not recognized
  at("multi_modal_projector.linear_{1,2}", colwise { output = replicate }),
  -- by channels: a convolution with one group
  at("vision_tower.embeddings.patch_embedding", transformer.channels(2)),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "language_model.model.layers.*", "vision_tower.encoder.layers.*" } },
  -- replicated: 2 modules without a rule; the first is vision_tower.head.attention
  default(replicated()),
}
