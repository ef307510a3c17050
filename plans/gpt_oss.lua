-- gpt_oss.lua: gpt-oss. Each head has a sink. `expert_parallel`: a rank owns full experts. Without it experts are
-- replicated: the router weights the biases of the down projections, so they cannot be added after the sum over ranks.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options {
  sequence_parallel = false, loss_parallel = false, stable = false, expert_parallel = false,
}
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads
local attention <const>, block <const> = "model.layers.*.self_attn", "model.layers.*.mlp"

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention(attention, stream, { heads = n_heads, kv_heads = config:get("num_key_value_heads", n_heads) }),
  at(attention .. ".sinks", shard(0, { heads = n_heads })),
  opt.expert_parallel and {
    divides(mesh.tp, config.num_local_experts, "experts of " .. block),
    experts.block(block, stream, { gate = "router", size = config.intermediate_size, expert_parallel = true }),
  } or experts.replicated(block, stream),
}
