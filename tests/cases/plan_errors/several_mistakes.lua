local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_paralel and shard(1) or replicate
local n_heads <const> = config.num_atention_heads
local per_head = config.hidden_size / n_heads

return plan {
  api = 1,
  divides(mesh.tpp, n_heads),
  at("model.layers.*.self_attn.q_proj", colwise { inptu = residual, heads = n_heads }),
  at("model.norm", norm_on(residul)),
  at("model.embed_tokens", vocab_rowwise { output = shard("1") }),
  per_head > 3 and at("lm_head", colwise { input = residual }),
}
