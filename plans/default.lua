-- default.lua: for architectures without a plan. A block is sharded if all of its modules have the usual names, else
-- replicated. With a gate_up_proj, `fused` must also declare the order of its rows ("contiguous" or "interleaved").
local transformer <const> = require "transformer"
local opt <const> = options({ sequence_parallel = false, loss_parallel = false, stable = false, fused = "" },
                            { ["fused=no"] = "" })
local stream <const> = transformer.stream(opt)
local text <const> = transformer.text_model()
local layer <const> = text.prefix .. ".layers.*"
local heads <const> = text.config:get("num_attention_heads", false)

-- The modules at `path` or within it that have parameters.
local function owners(path)
  local out <const> = {}
  for _, found in ipairs(model:find(path .. ".**")) do
    if #model:parameters(found) > 0 then table.insert(out, found) end
  end
  return out
end

-- Whether only modules of these names have parameters at `path` or within it.
local function only(path, names)
  local known <const> = {}
  for _, name in ipairs(names) do known[name] = true end
  for _, found in ipairs(owners(path)) do
    if not known[string.match(found, "[^.]+$")] then return false end
  end
  return true
end

-- Whether all modules of the pattern have this many output features.
local function made_of(pattern, features)
  for _, path in ipairs(model:find(pattern)) do
    if #model:parameters(path) > 0 and model:shape(path .. ".weight")[1] ~= features then return false end
  end
  return true
end

local function attention()
  local path <const> = layer .. ".self_attn"
  if not heads or not model:has(path .. ".q_proj") then return nil end
  local d <const> = text.config:get("head_dim", text.config.hidden_size // heads)
  local kv_heads <const> = text.config:get("num_key_value_heads", heads)
  local known <const> = only(path, { "q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm" })
    and made_of(path .. ".q_proj", heads * d) and made_of(path .. ".{k,v}_proj", kv_heads * d)
    and made_of(path .. ".{q,k}_norm", d)  -- a norm over all heads needs the heads of all ranks
  if not known then return nil end
  return transformer.attention(path, stream, {
    heads = heads,
    kv_heads = kv_heads,
    norms = #owners(path .. ".q_norm") > 0 and "{q,k}_norm",  -- a norm without parameters needs no rule
  })
end

-- Whether the activation of a gate takes the mean and deviation over all of its features (Gemma 3n).
local function sparse_gate()
  local pattern <const> = text.config:get("activation_sparsity_pattern", false)
  if type(pattern) == "number" then return pattern > 0 end
  for _, share in ipairs(pattern or {}) do
    if share > 0 then return true end
  end
  return false
end

local function mlp()
  local path <const> = layer .. ".mlp"
  local fused <const> = opt.fused ~= ""
  assert(not fused or model:has(path .. ".gate_up_proj"), "fused: the model has no " .. path .. ".gate_up_proj")
  local first <const> = model:find(path .. ".gate_up_proj")[1]
  local names <const> = fused and { "gate_up_proj", "down_proj" } or { "gate_proj", "up_proj", "down_proj" }
  if not model:has(path .. ".down_proj") or not only(path, names) or sparse_gate() then return nil end
  return transformer.mlp(path, stream, {
    up = model:has(path .. ".gate_proj") and "{gate,up}_proj" or "up_proj",
    fused = fused and opt.fused,
    size = fused and model:shape(first .. ".weight")[1] // 2,
  })
end

local blocks <const> = { self_attn = attention(), mlp = mlp() }
if not next(blocks) then return plan { api = 1, mesh.tp == 1 and default(replicated()) } end  -- no decoder with the usual names

assert(not (opt.loss_parallel and text.head == "score"), "loss_parallel: the head of a classifier has too few outputs to be sharded; leave it off")
local norm <const> = norm_on(stream.residual)
local styles <const> = {
  embed_tokens = vocab_rowwise { output = text.merged and replicate or stream.residual },
  norm = norm, final_layernorm = norm, input_layernorm = norm, post_attention_layernorm = norm,
  pre_feedforward_layernorm = norm, post_feedforward_layernorm = norm,
}
local rules <const>, written <const>, unknown = { blocks.self_attn or false, blocks.mlp or false }, {}, nil
for _, path in ipairs(owners(text.prefix)) do
  local inside <const> = string.sub(path, #text.prefix + 2)
  local name <const> = string.match(inside, "^layers%.%d+%.([^.]+)") or inside
  if not blocks[name] then
    local pattern <const> = inside == "" and path or text.prefix .. "." .. string.gsub(inside, "^layers%.%d+%.", "layers.*.", 1)
    -- A module beside the sharded embedding needs a rule.
    local style <const> = styles[name] or not string.find(inside, ".", 1, true) and replicated()
    unknown = unknown or not styles[name] and path
    table.insert(rules, style and not written[pattern] and at(pattern, style))
    written[pattern] = true
  end
end
local embeds <const> = model:has(text.prefix .. ".embed_tokens") and #model:parameters(text.prefix .. ".embed_tokens") > 0
if embeds and model:has(text.head) then
  table.insert(rules, at(text.head, colwise { input = stream.residual, output = stream.logits }))
end
assert(not opt.sequence_parallel or not (unknown or text.merged), "sequence_parallel: the default plan cannot determine how " ..
       (unknown or "a model with other inputs") .. " uses the sequence; leave it off, or write a plan")

return plan { api = 1, rules, default(replicated()) }
