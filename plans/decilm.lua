-- decilm.lua: the first DeciLM. Llama's modules; each layer has key heads of its own number.
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = false, loss_parallel = false, stable = false })
local per_layer <const> = config.num_key_value_heads_per_layer
assert(#per_layer == config.num_hidden_layers, "config.num_key_value_heads_per_layer has " .. #per_layer ..
       " entries for " .. config.num_hidden_layers .. " layers")

local attention <const> = {}
for kv_heads, layers in pairs(transformer.alike("model.layers", #per_layer, function(i) return per_layer[i + 1] end)) do
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
