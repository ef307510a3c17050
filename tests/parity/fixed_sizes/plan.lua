-- q, k and the fused projection make shards, and out takes them. Options: shards of the fused projection's two parts
-- each by itself; k full again; k not sharded; a partial output; packed shards gathered as if they were plain ones.
local opt <const> = options { packed = false, gathered = false, full = false, summed = false, reordered = false }
local parts <const> = packed(-1, { 16, 16 })
local packed_colwise <const> = style {
  name = "packed_colwise",
  params = { weight = packed(0, { 16, 16 }), bias = packed(0, { 16, 16 }) },
  inputs = { { replicate, shared } },
  outputs = { opt.reordered and { shard(-1), replicate } or { parts, parts } },
}

return plan {
  api = 1,
  default(replicated()),
  at("q", colwise {}, { optional = true }),
  at("k", opt.full and replicated {} or colwise { output = opt.gathered and replicate or nil }, { optional = true }),
  at("fused", opt.packed and packed_colwise or colwise {}, { optional = true }),
  at("conv.{weight,bias}", shard(0), { optional = true }),
  at("out", rowwise {}, { optional = true }),
  at("few", colwise { heads = 2 }, { optional = true }),
  at("{norm,slopes}.{weight,bias,running_mean,running_var}", shard(0), { optional = true }),
  at("{keeping,own}", rowwise {}, { optional = true }),
  at("heads.out_proj", rowwise {}, { optional = true }),
  at("gate", colwise {}, { optional = true }),
  opt.summed and at(re("^$"), style { name = "summed", outputs = { { partial, replicate } } }),
}
