-- muse_glimmer.lua: MuseGlimmer. Llama's modules, and a gate on the output of attention, per head.
local n_heads <const> = config.num_attention_heads
local residual <const> = options { sequence_parallel = false }.sequence_parallel and shard(1) or replicate

return plan {
  api = 1,
  extends "llama",
  at("model.layers.*.self_attn.output_gate_proj", colwise { input = residual, heads = n_heads }),
}
