-- Outputs that leave as shards: of a colwise projection, of its heads, of a fused projection, of a dim that the ranks do
-- not divide; and the logits.
local opt <const> = options { sharded_logits = true }
local parts <const> = packed(-1, { 16, 16 })

return plan {
  api = 1,
  default(replicated()),
  at("up", colwise {}),
  at("odd", colwise {}),
  at("down", rowwise {}),
  at("fused", style {
    name = "packed_colwise",
    params = { weight = packed(0, { 16, 16 }), bias = packed(0, { 16, 16 }) },
    inputs = { { replicate, shared } },
    outputs = { { parts, parts } },
  }),
  at("score", colwise { output = opt.sharded_logits and shard(-1) or replicate }),
}
