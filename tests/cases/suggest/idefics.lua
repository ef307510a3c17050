-- A first plan for IdeficsForVisionText2Text, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- "by channels": the output channels of a convolution are sharded, and its output gathered.
-- No sequence parallelism: model.gated_cross_attn_layers: layers of cross-attention may be called between the
-- layers
local transformer <const> = require "transformer"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local n_heads <const> = config.num_attention_heads

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.vision_model.embeddings.position_embedding", replicated()),
  -- sure: norms over all 64 features of the hidden states
  at("model.gated_cross_attn_layers.*.{input,post_attention}_layernorm", replicated()),
  -- sure: 4 heads of 16 features
  transformer.heads_fit("model.gated_cross_attn_layers.*.cross_attn", n_heads),
  at("model.gated_cross_attn_layers.*.cross_attn.q_proj", colwise { heads = n_heads }),
  at("model.gated_cross_attn_layers.*.cross_attn.{k,v}_proj", colwise { heads = n_heads }),
  at("model.gated_cross_attn_layers.*.cross_attn.o_proj", rowwise {}),
  -- sure: 64 features to 96 and back
  at("model.gated_cross_attn_layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.gated_cross_attn_layers.*.mlp.down_proj", rowwise {}),
  -- replicated: not recognized by name or shape
  at("model.gated_cross_attn_layers.*", replicated()),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", replicated()),
  -- sure: 4 heads of 16 features
  transformer.heads_fit("model.layers.*.self_attn", n_heads),
  at("model.layers.*.self_attn.{q,k,v}_proj", colwise { heads = n_heads }),
  at("model.layers.*.self_attn.o_proj", rowwise {}),
  -- sure: 64 features to 96 and back
  at("model.layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.layers.*.mlp.down_proj", rowwise {}),
  -- replicated or by rows: config.json has no number of heads or no hidden size for these layers
  at("model.vision_model.encoder.layers.*.mlp.{fc1,fc2}", colwise { output = replicate }),
  at("model.vision_model.encoder.layers.*.self_attn.{k,out,q,v}_proj", colwise { output = replicate }),
  at("model.vision_model.encoder.layers.*.layer_{norm1,norm2}", replicated()),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 128 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- by channels: a convolution with one group
  at("model.vision_model.embeddings.patch_embedding", transformer.channels(2)),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = { "model.gated_cross_attn_layers.*", "model.layers.*", "model.vision_model.encoder.layers.*" } },
  -- replicated: 3 modules without a rule; the first is model.vision_model.embeddings
  default(replicated()),
}
