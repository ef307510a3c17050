-- strategies.lua: training strategies as sections of a plan: the units of fsdp, their dtypes, and recomputation.
-- `chosen` uses the strategy of the model class; each strategy may be called directly and takes the same options.
--
--   local strategies <const> = require "strategies"
--   return plan { extends "llama", strategies.chosen { precision = true, recompute = "selective" } }

---@class strategies
local strategies = {}

---@class strategy_options
---@field layers?    string          pattern of the layers; default: that of the strategy
---@field reshard?   boolean|string|integer  as in fsdp
---@field prefetch?  integer|table   as in fsdp
---@field offload?   boolean         as in fsdp
---@field precision? boolean         parameters stored in float32 are used in bfloat16, gradients summed in float32
---@field recompute? string|false    "layers", "parts" or "selective" (see strategies.recompute); false: none
---@field towers?    string          frozen towers: "root", "layers" or "ignored" (see strategies.frozen_towers)

local kOptions <const> = {
  layers = "string", reshard = "any", prefetch = "any", offload = "boolean", precision = "boolean", recompute = "any",
  towers = "string",
  ["towers=whole"] = "now ignored",
}

-- Whether a module matches the pattern or is below a match: headers list only modules with parameters.
local function there(pattern)
  return model:has(pattern) or model:has(pattern .. ".**")
end

-- The pattern of the first of these names that the model has under `layers`; nil for none.
local function first(layers, names)
  for _, name in ipairs(names) do
    if there(layers .. "." .. name) then return layers .. "." .. name end
  end
  return nil
end

-- Whether layers use keys and values of an earlier layer: such a layer cannot be recomputed by itself.
local function shares_keys()
  local text <const> = config:get("text_config", config)
  return text:get("num_kv_shared_layers", 0) > 0
end

-- "layers" recomputes full layers; "parts" recomputes mlp, attention and the two norms of a layer, each by itself;
-- "selective" recomputes full layers, but keeps the results of attention and of every second matrix product. If layers
-- share keys and values, each of the three values means "parts" without attention.
---@param layers string
---@param how string
---@return table  for plan{}
function strategies.recompute(layers, how)
  assert(how == "layers" or how == "parts" or how == "selective",
         "recompute = '" .. tostring(how) .. "': it must be 'layers', 'parts' or 'selective'")
  local shared <const> = shares_keys()
  if how == "layers" and not shared then return { recompute { layers } } end
  if how == "selective" and not shared then
    return { recompute { layers, keep = { "attention", "every_second_matmul" } } }
  end
  return {
    recompute {
      first(layers, { "mlp", "feed_forward", "ffn" }),
      not shared and first(layers, { "self_attn", "attention", "attn", "linear_attn" }),
      first(layers, { "input_layernorm", "attention_norm", "layer_norm1", "norm1" }),
      first(layers, { "post_attention_layernorm", "ffn_norm", "layer_norm2", "norm2" }),
      first(layers, { "mlp_moe_gen" }),
      first(layers, { "input_layernorm_moe_gen" }),
      first(layers, { "post_attention_layernorm_moe_gen" }),
    },
  }
end

-- Towers of multimodal models, which are usually frozen. "root": the towers belong to the root unit and are full from
-- the root's forward to the end of the root's backward; "layers": each layer of a tower is a unit; "ignored": towers
-- belong to no unit, and every rank has all parameters of the towers.
---@param how string
---@return { wrap: string[], ignore: string[] }
function strategies.frozen_towers(how)
  assert(how == "root" or how == "layers" or how == "ignored",
         "towers = '" .. tostring(how) .. "': it must be 'root', 'layers' or 'ignored'")
  local names <const> = {
    "visual", "vision", "vision_tower", "vision_model", "vit_model", "image_encoder", "vision_encoder", "audio_tower",
    "audio_encoder", "audio_model", "embed_vision", "embed_audio", "mm_projector", "aligner", "multi_modal_projector",
  }
  local towers <const> = { wrap = {}, ignore = {} }
  for _, name in ipairs(names) do
    for _, prefix in ipairs { "", "model." } do
      local path <const> = prefix .. name
      if how == "ignored" and there(path) then table.insert(towers.ignore, path) end
      for _, list in ipairs { "layers", "blocks", "encoder.layers", "encoder.layer", "vision_model.encoder.layers" } do
        local layers <const> = path .. "." .. list .. ".*"
        if how == "layers" and there(layers) then table.insert(towers.wrap, layers) end
      end
    end
  end
  return towers
end

-- The sections for the options. `outputs`: dtype of the model's outputs under precision.
local function sections(o, layers, outputs)
  local towers <const> = strategies.frozen_towers(o.towers or "root")
  local reshard = o.reshard
  if reshard == nil then reshard = "all_but_last" end
  return {
    fsdp {
      wrap = { layers, table.unpack(towers.wrap) },
      ignore = towers.ignore,
      reshard = reshard,
      prefetch = o.prefetch,
      offload = o.offload,
    },
    o.precision and precision { parameters = "bfloat16", reduce = "float32", outputs = outputs or "float32" },
    o.recompute and strategies.recompute(layers, o.recompute),
  }
end

-- The pattern of the model's layers.
local function layers_of(o)
  if o.layers then return o.layers end
  for _, layers in ipairs { "model.layers.*", "model.language_model.layers.*", "language_model.model.layers.*",
                            "backbone.layers.*", "transformer.h.*" } do
    if there(layers) then return layers end
  end
  error "strategies: the layers of this model were not found; pass their pattern, as in layers = \"model.layers.*\""
end

---@param o? strategy_options
---@return table  for plan{}
function strategies.default(o)
  o = takes("default", o, kOptions)
  return sections(o, layers_of(o))
end

-- A copy of the options with another value for recompute.
local function recomputing(o, how)
  local changed <const> = {}
  for key in pairs(kOptions) do changed[key] = o[key] end
  changed.recompute = how
  return changed
end

-- Attention layers are not recomputed; layers with an mlp or a Mamba block are.
---@param o? strategy_options
---@return table
function strategies.nemotron_h(o)
  o = takes("nemotron_h", o, kOptions)
  local layers <const> = o.layers or (there("backbone.layers.*") and "backbone.layers.*" or "model.layers.*")
  local again <const> = {}
  for _, part in ipairs { "conv1d", "up_proj" } do
    for _, path in ipairs(model:find(layers .. ".mixer." .. part)) do
      table.insert(again, (string.gsub(path, "%.mixer%.[^.]+$", "")))
    end
  end
  return {
    sections(recomputing(o, false), layers),
    o.recompute and recompute(again),
  }
end

-- Parameters that the checkpoint stores in float32 are used in float32.
---@param o? strategy_options
---@return table
function strategies.qwen3_5(o)
  o = takes("qwen3_5", o, kOptions)
  return { sections(o, layers_of(o)), o.precision and there("**._fp32_params") and keep_dtype("**._fp32_params", "float32") }
end

-- Hyper-connections, the compressor and the head are computed in float32.
---@param o? strategy_options
---@return table
function strategies.deepseek_v4(o)
  o = takes("deepseek_v4", o, kOptions)
  local kept <const> = {}
  for _, name in ipairs { "**.attn_hc", "**.ffn_hc", "**.hc_head", "lm_head", "**.self_attn.compressor.{wkv,wgate}",
                          "**.self_attn.indexer.compressor.{wkv,wgate}" } do
    if o.precision and there(name) then table.insert(kept, keep_dtype(name, "float32")) end
  end
  return { sections(o, layers_of(o)), kept }
end

-- Wan's transformer.
---@param o? strategy_options
---@return table
function strategies.wan(o)
  o = takes("wan", o, kOptions)
  return sections(o, o.layers or "blocks.*")
end

-- HunyuanVideo: its layers are recomputed unless recompute = false; with `precision`, its outputs stay in bfloat16.
---@param o? strategy_options
---@return table
function strategies.hunyuan(o)
  o = takes("hunyuan", o, kOptions)
  local how = o.recompute
  if how == nil then how = "layers" end
  return sections(recomputing(o, how), o.layers or "transformer_blocks.*", "bfloat16")
end

-- BAGEL: the layers of its language model, under their names in the checkpoint or below `model`.
---@param o? strategy_options
---@return table
function strategies.bagel(o)
  o = takes("bagel", o, kOptions)
  local inner <const> = "language_model.model.layers.*"
  return sections(o, o.layers or (there("model." .. inner) and "model." .. inner or inner))
end

local kChosen <const> = {
  NemotronHForCausalLM = "nemotron_h",
  Qwen3_5ForCausalLM = "qwen3_5",
  Qwen3_5ForConditionalGeneration = "qwen3_5",
  DeepseekV4ForCausalLM = "deepseek_v4",
  WanTransformer3DModel = "wan",
  HunyuanVideo15Transformer3DModel = "hunyuan",
  BagelForUnifiedMultimodal = "bagel",
  BagelForConditionalGeneration = "bagel",
}

-- The strategy of the model class; strategies.default for other classes.
---@param o? strategy_options
---@return table  for plan{}
function strategies.chosen(o)
  local classes <const> = config:get("architectures", {})
  local class <const> = classes[1] or config:get("_class_name", "")
  return strategies[kChosen[class] or "default"](o)
end

return strategies
