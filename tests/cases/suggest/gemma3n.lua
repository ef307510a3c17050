-- A first plan for Gemma3nForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- No sequence parallelism: model.layers: the use of altup in a layer is unknown
local transformer <const> = require "transformer"
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config.num_key_value_heads

return plan {
  api = 1,
  -- sure: the embedding: its 128 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  at("model.embed_tokens_per_layer", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.per_layer_projection_norm", replicated()),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.altup.router_norm", replicated()),
  at("model.layers.*.{input_layernorm,post_attention_layernorm,post_feedforward_layernorm,post_per_layer_input_norm,pre_feedforward_layernorm}",
     replicated()),
  at("model.layers.*.laurel.post_laurel_norm", replicated()),
  -- sure: 4 heads of 16 features, 2 heads for keys and values
  transformer.heads_fit("model.layers.*.self_attn", n_heads, n_kv_heads),
  at("model.layers.*.self_attn.q_proj", colwise { heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj", colwise { heads = n_kv_heads }),
  at("model.layers.*.self_attn.{k,q}_norm", transformer.head_norm()),
  at("model.layers.*.self_attn.o_proj", rowwise {}),
  -- by rows: not sharded by features: activation_sparsity_pattern in config.json is above 0 in some layers, whose
  -- activation takes the mean and the deviation over all features of the gate; a pattern of zeros would decide
  -- otherwise
  at("model.layers.*.mlp.{gate,up,down}_proj", colwise { output = replicate }),
  -- replicated: not recognized by name or shape
  at("model.layers.*.{altup,per_layer_input_gate,per_layer_projection}", replicated()),
  at("model.layers.*.altup.{correction_coefs,modality_router,prediction_coefs}", replicated()),
  at("model.layers.*.laurel.linear_{left,right}", replicated()),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- by rows: not recognized
  at("model.per_layer_model_projection", colwise { output = replicate }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
  -- replicated: 2 modules without a rule; the first is model.altup_projections.*
  default(replicated()),
}
