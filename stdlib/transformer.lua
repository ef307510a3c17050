-- transformer.lua: the blocks of decoder plans. Each function takes arguments and returns a list of rules; `stream`
-- declares the layout of the residual stream, which every block takes as an argument.

---@class transformer
local transformer = {}

-- Checks that the value is one of the names; false and nil are allowed.
local function one_of(what, value, names)
  for _, name in ipairs(names) do
    if not value or value == name then return value end
  end
  error(what .. " = '" .. tostring(value) .. "': it is one of '" .. table.concat(names, "', '") .. "'")
end

-- Checks the stream argument of a block; an error that shows how to make one if it is missing.
local function check_stream(name, stream)
  if not (stream and stream.residual) then
    error(name .. ": the stream is missing: transformer.stream { sequence_parallel = false, loss_parallel = false, stable = false }")
  end
end

---@class stream
---@field residual layout   of the hidden states between blocks: replicate, or shard(1) under sequence parallelism
---@field logits   layout   of the logits: replicate, or shard(-1) for a loss over a sharded vocabulary
---@field stable   boolean  no reduction over ranks in the forward: every dot product is computed on one rank

-- The options sequence_parallel, loss_parallel and stable of a decoder plan as layouts. A plan without one of them
-- passes false.
---@param opt { sequence_parallel: boolean, loss_parallel: boolean, stable: boolean }
---@return stream
function transformer.stream(opt)
  return {
    residual = opt.sequence_parallel and shard(1) or replicate,
    logits = opt.loss_parallel and shard(-1) or replicate,
    stable = opt.stable,
  }
end

-- The output projection of a block: from sharded features to the residual stream. rowwise sums terms over the ranks, in
-- an order that depends on their number; for a stable stream the features are gathered and every rank computes full dot
-- products for its own outputs.
---@param stream stream
---@param features? layout  of its input: shard(-1)
---@return style
function transformer.block_end(stream, features)
  features = features or shard(-1)
  if stream.stable then return colwise { input = features, output = stream.residual } end
  return rowwise { input = features, output = stream.residual }
end

-- A norm (or another per-head scale) on sharded heads: its parameters are replicated, and the gradient of each rank is
-- a term of the sum.
---@return style
function transformer.head_norm()
  return style { name = "head_norm", params = { weight = shared, bias = shared } }
end

-- Checks that the mesh fits these heads: query heads are split between ranks, key heads may also be replicated.
---@param path string  pattern of the attention modules, for the message
---@param heads integer
---@param kv_heads? integer  nil if equal to heads, or without key heads
---@return table  for plan{}
function transformer.heads_fit(path, heads, kv_heads)
  return {
    divides(mesh.tp, heads, "query heads of " .. path),
    kv_heads and fits(mesh.tp, kv_heads, "key heads of " .. path),
  }
end

-- A fused projection whose outputs are consecutive parts, each made of heads: every part is sharded by itself.
---@param o { input: layout, sizes: integer[], heads?: integer[] }
---@return style
function transformer.fused_colwise(o)
  o = takes("fused_colwise", o, { input = "layout", sizes = "table", heads = "table" })
  local rows <const> = packed(0, o.sizes, o.heads and { heads = o.heads })
  local features <const> = packed(-1, o.sizes, o.heads and { heads = o.heads })
  return style {
    name = "fused_colwise",
    params = { weight = rows, bias = rows },
    inputs = { { o.input or replicate, shared } },
    outputs = { { features, features } },
  }
end

---@class attention_options
---@field heads     integer  query heads
---@field kv_heads? integer  key and value heads; default: as many as query heads
---@field out?      string   name of the output projection: "o_proj"
---@field norms?    string   pattern of the norms on query and key heads: "{q,k}_norm"
---@field fused?    string   query, key and value are one projection: "contiguous", all of q, then k, then v; or
---                          "interleaved", for each key head its query heads, itself, its value head
---@field qkv?      string   its name: "qkv_proj"
---@field head_dim? integer  features of a head; only a contiguous projection needs it
---@field whole?    boolean  every rank computes all heads, with replicated weights

-- Attention with sharded heads: projections split between heads, and the output projection to the stream.
---@param path string  pattern of the attention modules
---@param stream stream
---@param o attention_options
---@return rule[]
function transformer.attention(path, stream, o)
  check_stream("attention", stream)
  o = takes("attention", o, { heads = "integer", kv_heads = "integer", out = "string", norms = "string",
                              fused = "string", qkv = "string", head_dim = "integer", whole = "boolean" })
  local residual <const> = stream.residual
  if not (o.heads or o.whole) then error("attention: heads is missing: { heads = config.num_attention_heads }") end
  local heads <const>, kv_heads <const> = o.heads, o.kv_heads or o.heads
  local fused <const> = one_of("fused", o.fused, { "contiguous", "interleaved" })
  local qkv <const> = path .. "." .. (o.qkv or "qkv_proj")
  local out <const> = path .. "." .. (o.out or "o_proj")
  if o.whole then
    return {
      at(fused and qkv or path .. ".{q,k,v}_proj", replicated { input = residual }),
      o.norms and at(path .. "." .. o.norms, replicated()),
      at(out, replicated { output = residual }),
    }
  end
  local sizes <const> = fused == "contiguous" and { heads * o.head_dim, kv_heads * o.head_dim, kv_heads * o.head_dim }
  return {
    transformer.heads_fit(path, heads, kv_heads),
    not fused and at(path .. ".q_proj", colwise { input = residual, heads = heads }),
    not fused and at(path .. ".{k,v}_proj", colwise { input = residual, heads = kv_heads }),
    sizes and at(qkv, transformer.fused_colwise { input = residual, sizes = sizes, heads = { heads, kv_heads, kv_heads } }),
    fused == "interleaved" and {
      divides(mesh.tp, kv_heads, "groups of heads of " .. path),  -- a group's queries cannot be on two ranks
      at(qkv, colwise { input = residual, heads = kv_heads }),
    },
    o.norms and at(path .. "." .. o.norms, transformer.head_norm()),
    at(out, transformer.block_end(stream)),
  }
end

---@class mlp_options
---@field up?      string   pattern of the projections to the wide features: "{gate,up}_proj"
---@field down?    string   name of the down projection: "down_proj"
---@field fused?   string   gate and up are one projection: "contiguous", or "interleaved" feature by feature
---@field gate_up? string   its name: "gate_up_proj"
---@field size?    integer  the wide features; only a fused projection needs it

-- The feed-forward block with sharded intermediate features.
---@param path string  pattern of the modules
---@param stream stream
---@param o? mlp_options
---@return rule[]
function transformer.mlp(path, stream, o)
  check_stream("mlp", stream)
  o = takes("mlp", o, { up = "string", down = "string", fused = "string", gate_up = "string", size = "integer" })
  local residual <const> = stream.residual
  local fused <const> = one_of("fused", o.fused, { "contiguous", "interleaved" })
  local gate_up <const> = path .. "." .. (o.gate_up or "gate_up_proj")
  return {
    not fused and at(path .. "." .. (o.up or "{gate,up}_proj"), colwise { input = residual }),
    fused == "contiguous" and at(gate_up, transformer.fused_colwise { input = residual, sizes = { o.size, o.size } }),
    fused == "interleaved" and at(gate_up, colwise { input = residual, heads = o.size }),
    at(path .. "." .. (o.down or "down_proj"), transformer.block_end(stream)),
  }
end

---@class ends_options
---@field prefix? string   path of the model within the one with the head: "model"
---@field embed?  string   name of the embedding: "embed_tokens"
---@field norm?   string   name of the final norm: "norm"
---@field head?   string   path of the head: "lm_head", or "score" for a classifier in config.architectures
---@field merged? boolean  other inputs (images) are merged into the embeddings, so the stream begins at the first layer

-- The embedding, the final norm and the head.
---@param stream stream
---@param o? ends_options
---@return rule[]
function transformer.ends(stream, o)
  check_stream("ends", stream)
  o = takes("ends", o, { prefix = "string", embed = "string", norm = "string", head = "string", merged = "boolean" })
  local residual <const> = stream.residual
  local prefix <const> = o.prefix or "model"
  local head <const> = o.head or transformer.head()
  local classifies <const> = head == "score"
  assert(not classifies or stream.logits == replicate, "loss_parallel: the head of a classifier has too few outputs to be sharded")
  return {
    at(prefix .. "." .. (o.embed or "embed_tokens"), vocab_rowwise { output = o.merged and replicate or residual }),
    o.merged and residual ~= replicate and at(prefix .. ".layers.0", prepare_input { { replicate, residual } }),
    at(prefix .. "." .. (o.norm or "norm"), norm_on(residual)),
    -- If it is tied to the embedding, both shard the weight along dim 0.
    at(head, colwise { input = residual, output = stream.logits }),
    -- The layers between the ends: on a mesh with dp, the parameters of a layer are gathered while it is used.
    fsdp { wrap = prefix .. ".layers.*" },
  }
end

-- The path of the head: "score" for the classes of Hugging Face that classify, else "lm_head".
---@return string
function transformer.head()
  local names <const> = config:get("architectures", false)
  local class <const> = names and names[1] or ""
  return string.find(class, "ForSequenceClassification$") and "score" or "lm_head"
end

---@class text_model
---@field config table    the part of config.json about the decoder
---@field prefix string   where its layers are
---@field head   string   path of the head
---@field merged boolean  whether it is a part of a model with other inputs

-- The decoder of a text model (config.json is its config, "model" its path) or of a model with images: then its config
-- is text_config, and its path "model.language_model", or "language_model.model" in files of older versions.
---@return text_model
function transformer.text_model()
  local text <const> = config:get("text_config", false)
  if not text then return { config = config, prefix = "model", head = transformer.head(), merged = false } end
  local older <const> = model:has("language_model.model.embed_tokens")
  return {
    config = text,
    prefix = older and "language_model.model" or "model.language_model",
    head = model:has("language_model.lm_head") and "language_model.lm_head" or transformer.head(),
    merged = true,
  }
end

-- Patterns of layers that are alike: "model.layers.{0,2,5}" by the value of key_of for layer i, from 0; nil and false
-- are skipped.
---@param prefix string  "model.layers"
---@param count integer
---@param key_of fun(i: integer): any
---@return table<any, string>
function transformer.alike(prefix, count, key_of)
  local patterns <const> = {}
  for i = 0, count - 1 do
    local key <const> = key_of(i)
    if key then patterns[key] = (patterns[key] and patterns[key] .. "," or "") .. i end
  end
  for key, layers in pairs(patterns) do patterns[key] = prefix .. ".{" .. layers .. "}" end
  return patterns
end

return transformer
