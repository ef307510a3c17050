-- decilm.lua: the first DeciLM. Llama's modules; the number of key heads may differ between layers.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole" })
local count <const> = config.num_hidden_layers
-- Without an architecture search all layers are alike.
local per_layer <const> = config:get("num_key_value_heads_per_layer", false)
local kv_heads_of_all <const> = not per_layer and config:get("num_key_value_heads", config.num_attention_heads)
assert(not per_layer or #per_layer == count, "config.num_key_value_heads_per_layer has " ..
       (per_layer and #per_layer or 0) .. " entries for " .. count .. " layers")

local attention <const> = {}
for kv_heads, layers in pairs(transformer.alike("model.layers", count, function(i)
  return per_layer and per_layer[i + 1] or kv_heads_of_all
end)) do
  table.insert(attention, transformer.attention(layers .. ".self_attn", stream,
                                                { heads = config.num_attention_heads, kv_heads = kv_heads }))
end

return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  attention,
  transformer.mlp("model.layers.*.mlp", stream),
}
