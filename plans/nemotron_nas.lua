-- nemotron_nas.lua: Nemotron-NAS (Llama-Nemotron Super and Ultra): Llama's modules, but layers may differ. A block may
-- be absent (no_op) or one linear layer, and the number of key heads may differ between layers.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false, stable = false, context = "", inputs = "whole" }
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads

-- The key heads of layer i, from 0 (0: one linear layer; nil: no attention), and its mlp ("mlp", "linear" or nil).
local function layer(i)
  local block <const> = config.block_configs[i + 1]
  assert(block, "config.block_configs has no entry for layer " .. i .. " of " .. config.num_hidden_layers)
  local attention <const>, ffn <const> = block.attention, block.ffn
  local group <const> = attention:get("n_heads_in_group", false)
  local kv_heads, mlp
  if attention:get("replace_with_linear", false) then
    kv_heads = 0
  elseif not attention:get("no_op", false) then
    assert(group, "layer " .. i .. ": attention has none of n_heads_in_group, replace_with_linear and no_op")
    assert(n_heads % group == 0, "layer " .. i .. ": " .. n_heads .. " heads do not divide into groups of " .. group)
    kv_heads = n_heads // group
  end
  if not ffn:get("no_op", false) then mlp = ffn:get("replace_with_linear", false) and "linear" or "mlp" end
  return kv_heads, mlp
end

-- Layers that are alike share their rules.
local function alike(key_of) return transformer.alike("model.layers", config.num_hidden_layers, key_of) end

local rules <const> = {}
for kv_heads, layers in pairs(alike(function(i) return (layer(i)) end)) do
  table.insert(rules, {
    at(layers .. ".input_layernorm", norm_on(stream.residual)),
    kv_heads == 0 and at(layers .. ".self_attn.linear_attn", norm_on(stream.residual)),
    kv_heads > 0 and transformer.attention(layers .. ".self_attn", stream, { heads = n_heads, kv_heads = kv_heads }),
  })
end
for kind, layers in pairs(alike(function(i) return select(2, layer(i)) end)) do
  table.insert(rules, {
    at(layers .. ".post_attention_layernorm", norm_on(stream.residual)),
    kind == "linear" and at(layers .. ".mlp.linear_mlp", norm_on(stream.residual)),
    kind == "mlp" and transformer.mlp(layers .. ".mlp", stream),
  })
end

return plan { api = 1, transformer.ends(stream), rules }
