-- default.lua: for architectures that no plan is for, as far as their modules have the usual names. What it does not
-- know stays whole: a block is cut only where everything in it is known. `fused`: how the rows of a gate_up_proj lie
-- ("contiguous" or "interleaved"); it cannot be seen, so without it such a block stays whole.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false, stable = false, fused = "no" }
local stream <const> = transformer.stream(opt)
local text <const> = transformer.text_model()
local layer <const> = text.prefix .. ".layers.*"
local heads <const> = text.config:get("num_attention_heads", false)
local unknown <const> = {}  -- modules within the layers that stay whole

-- Whether everything in the modules at `path` that has parameters has one of these names. What has not is remembered.
local function only(path, names)
  local known <const> = {}
  for _, name in ipairs(names) do known[name] = true end
  local all = true
  for _, found in ipairs(model:find(path .. ".**")) do
    local name <const> = string.match(found, "[^.]+$")
    if #model:parameters(found) > 0 and not known[name] then
      table.insert(unknown, found)
      all = false
    end
  end
  return all
end

-- Whether the projections have these many features for each head in every layer.
local function made_of(pattern, features)
  for _, path in ipairs(model:find(pattern)) do
    if model:shape(path .. ".weight")[1] ~= features then return false end
  end
  return true
end

local function attention()
  local path <const> = layer .. ".self_attn"
  if not heads or not model:has(path .. ".q_proj") then return only(path, {}) and nil end
  local d <const> = text.config:get("head_dim", text.config.hidden_size // heads)
  local kv_heads <const> = text.config:get("num_key_value_heads", heads)
  local known <const> = only(path, { "q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm" })
    and made_of(path .. ".q_proj", heads * d) and made_of(path .. ".{k,v}_proj", kv_heads * d)
    and made_of(path .. ".{q,k}_norm", d)  -- a norm over all heads would need the others' too
  if not known then return nil end
  return transformer.attention(path, stream, {
    heads = heads,
    kv_heads = kv_heads,
    norms = model:has(path .. ".q_norm") and "{q,k}_norm",
  })
end

local function mlp()
  local path <const> = layer .. ".mlp"
  local fused <const> = opt.fused ~= "no" and model:has(path .. ".gate_up_proj")
  local first <const> = model:find(path .. ".gate_up_proj")[1]
  local names <const> = fused and { "gate_up_proj", "down_proj" } or { "gate_proj", "up_proj", "down_proj" }
  if not model:has(path .. ".down_proj") or not only(path, names) then return nil end
  return transformer.mlp(path, stream, {
    up = model:has(path .. ".gate_proj") and "{gate,up}_proj" or "up_proj",
    fused = fused and opt.fused,
    size = fused and model:shape(first .. ".weight")[1] // 2,
  })
end

-- The rule where there is such a module, with parameters: without them nothing of it needs to be said.
local function where(path, style) return #model:parameters(path) > 0 and at(path, style) end

local blocks <const> = { attention(), mlp() }
local ends <const> = {
  where(text.prefix .. ".embed_tokens", vocab_rowwise { output = text.merged and replicate or stream.residual }),
  where(text.prefix .. ".norm", norm_on(stream.residual)),
  where(text.prefix .. ".final_layernorm", norm_on(stream.residual)),
  where(text.head, colwise { input = stream.residual, output = text.head == "score" and replicate or stream.logits }),
}
local known <const> = {
  self_attn = true, mlp = true, input_layernorm = "norm", post_attention_layernorm = "norm",
  pre_feedforward_layernorm = "norm", post_feedforward_layernorm = "norm",
}
for _, path in ipairs(model:find(layer .. ".**")) do
  local name <const> = string.match(string.sub(path, #text.prefix + 9), "^%d+%.([^.]+)") or ""
  if known[name] == "norm" then
    table.insert(ends, where(path, norm_on(stream.residual)))
  elseif not known[name] and #model:parameters(path) > 0 then
    table.insert(unknown, path)
  end
end
if opt.sequence_parallel then
  assert(#unknown == 0 and not text.merged, "sequence_parallel: the default plan does not know how " ..
         (unknown[1] or "a model with other inputs") .. " uses the sequence; leave it off, or write a plan")
end

return plan { api = 1, blocks, ends, default(replicated()) }
