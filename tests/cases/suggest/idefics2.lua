-- A first plan for Idefics2ForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- "by columns": the features of a table are sharded, and its output gathered.
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
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.text_model.embed_tokens", vocab_rowwise {}),
  -- sure: norms over all 64 features of the hidden states
  at("model.connector.perceiver_resampler.layers.*.{input_context_norm,input_latents_norm,post_attention_layernorm}",
     replicated()),
  -- sure: 16 heads of 96 features, 2 heads for keys and values
  config.perceiver_config.resampler_n_heads % mesh.tp == 0 and (config.perceiver_config.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.perceiver_config.num_key_value_heads == 0) and {
    at("model.connector.perceiver_resampler.layers.*.self_attn.q_proj",
       colwise { heads = config.perceiver_config.resampler_n_heads }),
    at("model.connector.perceiver_resampler.layers.*.self_attn.{k,v}_proj",
       colwise { heads = config.perceiver_config.num_key_value_heads }),
    at("model.connector.perceiver_resampler.layers.*.self_attn.o_proj", rowwise {}),
  },
  -- sure: 64 features to 256 and back
  at("model.connector.perceiver_resampler.layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.connector.perceiver_resampler.layers.*.mlp.down_proj", rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.text_model.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.text_model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  transformer.heads_fit("model.text_model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.text_model.layers.*.self_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.text_model.layers.*.self_attn.{k,v}_proj", colwise { input = residual, heads = n_kv_heads }),
  at("model.text_model.layers.*.self_attn.o_proj", rowwise { output = residual }),
  -- sure: 64 features to 96 and back
  at("model.text_model.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.text_model.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.vision_model.encoder.layers.*.layer_{norm1,norm2}", replicated()),
  -- sure: 4 heads of 16 features
  config.vision_config.num_attention_heads % mesh.tp == 0 and {
    at("model.vision_model.encoder.layers.*.self_attn.{q,k,v}_proj",
       colwise { heads = config.vision_config.num_attention_heads }),
    at("model.vision_model.encoder.layers.*.self_attn.out_proj", rowwise {}),
  },
  -- sure: 64 features to 96 and back
  at("model.vision_model.encoder.layers.*.mlp.fc1", colwise {}),
  at("model.vision_model.encoder.layers.*.mlp.fc2", rowwise {}),
  -- sure: the norm after the last layer
  at("model.text_model.norm", replicated()),
  at("model.connector.perceiver_resampler.norm", replicated()),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- by rows: not recognized
  at("model.connector.modality_projection.{down,gate,up}_proj", colwise { output = replicate }),
  -- by columns: a table of positions or types
  at("model.vision_model.embeddings.position_embedding", transformer.table()),
  -- by channels: a convolution with one group
  at("model.vision_model.embeddings.patch_embedding", transformer.channels(2)),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.connector.perceiver_resampler.layers.*",
     "model.text_model.layers.*", "model.vision_model.encoder.layers.*" } },
  -- replicated: 2 modules without a rule; the first is model.connector.perceiver_resampler
  default(replicated()),
}
