-- llama.lua: Llama and the architectures that share its decoder layer. `fused`: the order of the rows of a qkv_proj and
-- a gate_up_proj, "contiguous" (part by part) or "interleaved" (key head by key head, and feature by feature).
local transformer <const> = require "transformer"
local opt <const> = options({ sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole", fused = "" },
                            { ["fused=no"] = "" })
local stream <const> = transformer.stream(opt)
local fused <const>, window <const> = opt.fused ~= "" and opt.fused, transformer.window()
local n_heads <const> = config.num_attention_heads
local n_kv_heads <const> = config:get("num_key_value_heads", n_heads)
local head_dim <const> = fused and config:get("head_dim", config.hidden_size // n_heads)

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream,
                        { heads = n_heads, kv_heads = n_kv_heads, fused = fused, head_dim = head_dim, window = window }),
  transformer.mlp("model.layers.*.mlp", stream, { fused = fused, size = fused and config.intermediate_size }),
}
