-- wan.lua: Wan's video transformer (diffusers). Feed-forward blocks and the embedders of time and text are sharded.
-- Attention is replicated, since its norms are over all heads.
local opt <const> = options { sequence_parallel = false }
assert(not opt.sequence_parallel, "sequence_parallel: Wan's blocks modulate full sequences of patches; leave it off")

return plan {
  api = 1,
  fsdp { wrap = "blocks.*" },
  at("condition_embedder.{text,time}_embedder.linear_1", colwise {}),
  at("condition_embedder.{text,time}_embedder.linear_2", rowwise {}),
  at("condition_embedder.time_proj", colwise { output = replicate }),
  at("blocks.*.ffn.net.0.proj", colwise {}),
  at("blocks.*.ffn.net.2", rowwise {}),
  at("proj_out", rowwise { input = replicate }),
  default(replicated()),
}
