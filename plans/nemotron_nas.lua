-- nemotron_nas.lua: Nemotron-NAS (Llama-Nemotron Super and Ultra): Llama's modules, but no two layers need be alike. A
-- block may be absent (no_op) or one linear layer, and each attention has key heads of its own number.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false, stable = false }
local stream <const> = transformer.stream(opt)
local n_heads <const> = config.num_attention_heads

-- What layer i (from 0) has: key heads (0: one linear layer; nil: nothing), and the mlp ("mlp", "linear", nil).
local function layer(i)
  local block <const> = config.block_configs[i + 1]
  assert(block, "config.block_configs has no entry for layer " .. i .. " of " .. config.num_hidden_layers)
  local attention <const>, ffn <const> = block.attention, block.ffn
  local group <const> = attention:get("n_heads_in_group", false)
  local kv_heads, mlp
  if attention:get("replace_with_linear", false) then
    kv_heads = 0
  elseif not attention:get("no_op", false) then
    assert(group, "layer " .. i .. ": attention is neither heads in groups, nor linear, nor no_op")
    assert(n_heads % group == 0, "layer " .. i .. ": " .. n_heads .. " heads are no groups of " .. group)
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
