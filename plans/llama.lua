-- llama.lua: Llama and the architectures that share its decoder layer.
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config:get("num_key_value_heads", n_heads)

return plan {
  api = 1,
  divides(mesh.tp, n_heads),
  at("model.embed_tokens",                      vocab_rowwise { output = residual }),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  at("model.layers.*.self_attn.q_proj",         colwise { input = residual, heads = n_heads }),
  at("model.layers.*.self_attn.{k,v}_proj",     colwise { input = residual, heads = n_kv_heads }),
  at("model.layers.*.self_attn.o_proj",         rowwise { output = residual }),
  at("model.layers.*.mlp.{gate,up}_proj",       colwise { input = residual }),
  at("model.layers.*.mlp.down_proj",            rowwise { output = residual }),
  at("model.norm",                              norm_on(residual)),
  -- Tied to embed_tokens where config.tie_word_embeddings says so: both cut the weight along dim 0.
  at("lm_head",                                 colwise { input = residual, output = opt.loss_parallel and shard(-1) or replicate }),
}
