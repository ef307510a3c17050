-- A first plan for PPFormulaNetForConditionalGeneration, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- "by columns": the features of a table are sharded, and its output gathered.
-- "by channels": the output channels of a convolution are sharded, and its output gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local text <const> = config.text_config
local n_heads <const> = text.decoder_attention_heads

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.decoder.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.decoder.layernorm_embedding", replicated()),
  at("model.encoder.multi_modal_projector.{conv1,conv2}", replicated()),
  at("model.encoder.neck.layer_{norm1,norm2}", replicated()),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.decoder.layers", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.decoder.layers.*.{encoder_attn,final,self_attn}_layer_norm", norm_on(residual)),
  -- sure: 4 heads of 16 features
  transformer.heads_fit("model.decoder.layers.*.encoder_attn", n_heads),
  at("model.decoder.layers.*.encoder_attn.q_proj", colwise { input = residual, heads = n_heads }),
  at("model.decoder.layers.*.encoder_attn.{k,v}_proj", colwise { heads = n_heads }),
  at("model.decoder.layers.*.encoder_attn.out_proj", rowwise { output = residual }),
  transformer.heads_fit("model.decoder.layers.*.self_attn", n_heads),
  at("model.decoder.layers.*.self_attn.{q,k,v}_proj", colwise { input = residual, heads = n_heads }),
  at("model.decoder.layers.*.self_attn.out_proj", rowwise { output = residual }),
  -- sure: 64 features to 96 and back
  at("model.decoder.layers.*.fc1", colwise { input = residual }),
  at("model.decoder.layers.*.fc2", rowwise { output = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("model.encoder.layers.*.layer_{norm1,norm2}", replicated()),
  -- replicated or by rows: attn is not sharded between heads: how attn uses the heads is unknown; other layers may
  -- use the output of this module, so attention is replicated in all layers
  at("model.encoder.layers.*.attn.{proj,qkv}", colwise { output = replicate }),
  at("model.encoder.layers.*.attn", replicated()),
  -- sure: 64 features to 96 and back
  at("model.encoder.layers.*.mlp.lin1", colwise {}),
  at("model.encoder.layers.*.mlp.lin2", rowwise {}),
  -- sure: the norm after the last layer
  at("model.decoder.layer_norm", replicated()),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- by columns: a table of positions or types
  at("model.decoder.embed_positions", transformer.table()),
  -- by rows: not recognized
  at("model.encoder.multi_modal_projector.linear_{1,2}", colwise { output = replicate }),
  -- by channels: a convolution with one group
  at("model.encoder.neck.{conv1,conv2}", transformer.channels(2)),
  at("model.encoder.patch_embed.projection", transformer.channels(2)),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.decoder.layers.*", "model.encoder.layers.*" } },
  -- replicated: 1 module without a rule; the first is model.encoder
  default(replicated()),
}
