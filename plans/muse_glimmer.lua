-- muse_glimmer.lua: MuseGlimmer. Llama's modules, and a gate on the output of attention, per head.
local n_heads <const> = config.num_attention_heads
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole" })

return plan {
  api = 1,
  extends "llama",
  at("model.layers.*.self_attn.output_gate_proj", transformer.column(stream, { input = stream.residual, heads = n_heads, attention = true })),
}
