-- A first plan for BltForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.encoder_hash_tok_embedding", vocab_rowwise {}),
  at("model.local_encoder.embed_tokens", vocab_rowwise {}),
  at("model.patcher.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.local_decoder.patch_embedding_projection", replicated()),
  at("model.local_encoder.patch_embedding_projection", replicated()),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.global_transformer.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.global_transformer.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  config.global_config.num_attention_heads % mesh.tp == 0 and (config.global_config.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.global_config.num_key_value_heads == 0) and {
    at("model.global_transformer.layers.*.self_attn.q_proj",
       colwise { input = residual, heads = config.global_config.num_attention_heads }),
    at("model.global_transformer.layers.*.self_attn.{k,v}_proj",
       colwise { input = residual, heads = config.global_config.num_key_value_heads }),
    at("model.global_transformer.layers.*.self_attn.o_proj", rowwise { output = residual }),
  },
  -- sure: 64 features to 96 and back
  at("model.global_transformer.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.global_transformer.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.local_decoder.layers.*.{input,post_attention}_layernorm", replicated()),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  config.decoder_config.num_attention_heads % mesh.tp == 0 and (config.decoder_config.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.decoder_config.num_key_value_heads == 0) and {
    at("model.local_decoder.layers.*.self_attn.q_proj", colwise { heads = config.decoder_config.num_attention_heads }),
    at("model.local_decoder.layers.*.self_attn.{k,v}_proj",
       colwise { heads = config.decoder_config.num_key_value_heads }),
    at("model.local_decoder.layers.*.self_attn.o_proj", rowwise {}),
  },
  -- sure: 64 features to 96 and back
  at("model.local_decoder.layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.local_decoder.layers.*.mlp.down_proj", rowwise {}),
  -- sure: norms over all 64 features of the hidden states
  at("model.local_encoder.layers.*.{input,post_attention}_layernorm", replicated()),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  config.encoder_config.num_attention_heads % mesh.tp == 0 and (config.encoder_config.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.encoder_config.num_key_value_heads == 0) and {
    at("model.local_encoder.layers.*.self_attn.q_proj", colwise { heads = config.encoder_config.num_attention_heads }),
    at("model.local_encoder.layers.*.self_attn.{k,v}_proj",
       colwise { heads = config.encoder_config.num_key_value_heads }),
    at("model.local_encoder.layers.*.self_attn.o_proj", rowwise {}),
  },
  -- sure: 64 features to 96 and back
  at("model.local_encoder.layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.local_encoder.layers.*.mlp.down_proj", rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.patcher.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.patcher.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  config.patcher_config.num_attention_heads % mesh.tp == 0 and (config.patcher_config.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.patcher_config.num_key_value_heads == 0) and {
    at("model.patcher.layers.*.self_attn.q_proj",
       colwise { input = residual, heads = config.patcher_config.num_attention_heads }),
    at("model.patcher.layers.*.self_attn.{k,v}_proj",
       colwise { input = residual, heads = config.patcher_config.num_key_value_heads }),
    at("model.patcher.layers.*.self_attn.o_proj", rowwise { output = residual }),
  },
  -- sure: 64 features to 96 and back
  at("model.patcher.layers.*.mlp.{gate,up}_proj", colwise { input = residual }),
  at("model.patcher.layers.*.mlp.down_proj", rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.local_decoder.cross_attn_layers.*.{k,q}_norm", replicated()),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  config.decoder_config.num_attention_heads % mesh.tp == 0 and (config.decoder_config.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.decoder_config.num_key_value_heads == 0) and {
    at("model.local_decoder.cross_attn_layers.*.q_proj", colwise { heads = config.decoder_config.num_attention_heads }),
    at("model.local_decoder.cross_attn_layers.*.{k,v}_proj",
       colwise { heads = config.decoder_config.num_key_value_heads }),
    at("model.local_decoder.cross_attn_layers.*.o_proj", rowwise {}),
  },
  -- sure: norms over all 64 features of the hidden states
  at("model.local_encoder.cross_attn_layers.*.{k,q}_norm", replicated()),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  config.encoder_config.num_attention_heads % mesh.tp == 0 and (config.encoder_config.num_key_value_heads % mesh.tp == 0
    or mesh.tp % config.encoder_config.num_key_value_heads == 0) and {
    at("model.local_encoder.cross_attn_layers.*.q_proj", colwise { heads = config.encoder_config.num_attention_heads }),
    at("model.local_encoder.cross_attn_layers.*.{k,v}_proj",
       colwise { heads = config.encoder_config.num_key_value_heads }),
    at("model.local_encoder.cross_attn_layers.*.o_proj", rowwise {}),
  },
  -- sure: the norm after the last layer
  at("model.patcher.norm", replicated()),
  at("model.local_decoder.norm", replicated()),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  at("model.patcher.lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.global_transformer.layers.*",
     "model.local_decoder.layers.*", "model.local_encoder.layers.*", "model.patcher.layers.*",
     "model.local_decoder.cross_attn_layers.*", "model.local_encoder.cross_attn_layers.*" } },
  -- replicated: 1 module without a rule; the first is model.global_transformer.token_embedding_projection
  default(replicated()),
}
