-- The host's plan for its own model, with a style of its own.
local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate

local function host_colwise(o)
  return style {
    name = "host_colwise",
    params = { weight = shard(0), bias = shard(0) },
    inputs = { { o.input, shared } },
    outputs = { { shard(-1), o.output } },
  }
end

return plan {
  api = 1,
  at("embed",         vocab_rowwise { output = residual }),
  at("blocks.*.norm", norm_on(residual)),
  at("blocks.*.up",   host_colwise { input = residual, output = shard(-1) }),
  at("blocks.*.down", rowwise { output = residual }),
  at("head",          host_colwise { input = residual, output = replicate }),
}
