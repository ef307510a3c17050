-- gemma4.lua: Gemma 4, dense and E-series, with images and audio or text alone. As Gemma 3, but layers differ in their
-- heads, and some use an earlier layer's keys and values. The per-layer inputs of the E-series (an embedding, a gate, a
-- projection) are replicated, except for the rows of the embedding.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false, stable = false }
local stream <const> = transformer.stream(opt)
local text <const> = transformer.text_model()
local layers <const> = text.prefix .. ".layers"
local layer <const> = layers .. ".*."
local per_layer <const> = model:has(text.prefix .. ".embed_tokens_per_layer")
-- With images, the per-layer inputs are computed from the padding token's row of the embedding's weight, which the model
-- reads without a call: every rank needs the same row, so the embedding and the head, which has its weight, are full.
local reads_row <const> = per_layer and text.merged
assert(not (reads_row and opt.loss_parallel),
       "loss_parallel: the head of the E-series with images is replicated with its embedding; leave it off")

assert(not text.config:get("enable_moe_block", false), "Gemma 4 with experts has no tensor-parallel plan; use a Gemma 4 without experts")
assert(not (per_layer and opt.sequence_parallel),
       "sequence_parallel: the layers of the E-series take inputs computed from the full sequence; leave it off")

-- The heads of a layer, from the shapes of its parameters: "8 4 {k,v}"; "8 0 k" with keys of an earlier layer.
local function heads_of(i)
  local path <const> = layers .. "." .. i .. ".self_attn."
  local d <const> = model:shape(path .. "q_norm.weight")[1]
  local heads <const> = model:shape(path .. "q_proj.weight")[1] // d
  if not model:has(path .. "k_proj") then return heads .. " 0 k" end
  return heads .. " " .. model:shape(path .. "k_proj.weight")[1] // d .. (model:has(path .. "v_proj") and " {k,v}" or " k")
end

local attention <const> = {}
for key, alike in pairs(transformer.alike(layers, text.config.num_hidden_layers, heads_of)) do
  local path <const> = alike .. ".self_attn"
  local heads <const>, kv_heads <const>, names <const> = string.match(key, "(%d+) (%d+) (.+)")
  table.insert(attention, {
    transformer.heads_fit(path, tonumber(heads), kv_heads ~= "0" and tonumber(kv_heads)),
    at(path .. ".q_proj", colwise { input = stream.residual, heads = tonumber(heads) }),
    at(path .. ".q_norm", transformer.head_norm()),
    kv_heads ~= "0" and {
      at(path .. "." .. names .. "_proj", colwise { input = stream.residual, heads = tonumber(kv_heads) }),
      at(path .. ".k_norm", transformer.head_norm()),
    },
    at(path .. ".o_proj", transformer.block_end(stream)),
  })
end

return plan {
  api = 1,
  reads_row and {
    at("{" .. text.prefix .. ".embed_tokens," .. text.head .. "}", replicated()),
    at(text.prefix .. ".norm", norm_on(stream.residual)),
    fsdp { wrap = layer:sub(1, -2) },
  } or transformer.ends(stream, { prefix = text.prefix, head = text.head, merged = text.merged }),
  at(layer .. "{input,post_attention,pre_feedforward,post_feedforward}_layernorm", norm_on(stream.residual)),
  attention,
  transformer.mlp(layer .. "mlp", stream),
  per_layer and {
    at(text.prefix .. ".embed_tokens_per_layer", vocab_rowwise {}),
    at(text.prefix .. ".{per_layer_model_projection,per_layer_projection_norm}", replicated()),
    at(layer .. "{per_layer_input_gate,per_layer_projection,post_per_layer_input_norm}", replicated()),
  },
  text.merged and default(replicated()),
}
