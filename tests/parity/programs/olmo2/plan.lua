-- A first plan for Olmo2ForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: not everything in a layer is understood
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate

return plan {
  api = 1,
  -- sure: the embedding: its 48 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- replicated: not recognized
  at("model.rotary_emb", replicated()),
  -- sure: norms over all 32 features of the hidden states
  at("model.layers.*.post_{attention,feedforward}_layernorm", replicated()),
  -- replicated: self_attn stays replicated: q_norm is a norm over the features of all heads, which no rank would
  -- have
  at("model.layers.*.self_attn.{q_proj,k_proj,v_proj,o_proj,q_norm,k_norm}", replicated()),
  -- sure: 32 features to 48 and back
  at("model.layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.layers.*.mlp.down_proj", rowwise {}),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 48 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
