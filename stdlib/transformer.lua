-- transformer.lua: the blocks of decoder plans. Each function takes arguments and returns a list of rules; `stream`
-- declares the layout of the residual stream, which every block takes as an argument.

---@class transformer
local transformer = {}

-- Checks that the value is one of the names; false and nil are allowed.
local function one_of(what, value, names)
  for _, name in ipairs(names) do
    if not value or value == name then return value end
  end
  error(what .. " = '" .. tostring(value) .. "': it must be one of '" .. table.concat(names, "', '") .. "'")
end

-- Checks the stream argument of a block: a missing stream is an error that shows how to make one. `without_context`: the
-- block does not support context parallelism.
local function check_stream(name, stream, without_context)
  if not (stream and stream.residual) then
    error(name .. ": the argument stream is missing, as in transformer.stream { sequence_parallel = false, loss_parallel = false, stable = false }")
  end
  if without_context and stream.context then
    error(name .. ": context = '" .. stream.context .. "' is not supported here; turn it off (context = \"\"), or use a mesh without cp")
  end
end

-- The layout of activations between blocks that have `layout` on tp: under context parallelism each rank of cp has its
-- own tokens: with "ring" and "ulysses_ring" of an early and a late chunk of the sequence, otherwise one chunk.
---@param stream stream
---@param layout layout
---@return layout
function transformer.tokens(stream, layout)
  if not stream.context then return layout end
  local zigzag <const> = stream.context == "ring" or stream.context == "ulysses_ring"
  return on { tp = layout, cp = zigzag and shard(1, { zigzag = true }) or shard(1) }
end

local tokens <const> = transformer.tokens

---@class stream
---@field residual layout   of the hidden states between blocks: replicate, or shard(1) under sequence parallelism; under
---                          context parallelism also a rank's own tokens on cp
---@field logits   layout   of the logits: replicate, or shard(-1) for a loss over a sharded vocabulary, under context
---                          parallelism of a rank's own tokens, as are all logits with own_inputs
---@field stable   boolean  no reduction over ranks in the forward: every dot product is computed on one rank
---@field context  string|false  how attention is computed while the sequence is sharded on cp: "ulysses", "ring",
---                          "plain_ring" or "ulysses_ring"; false: the sequence is not sharded
---@field own_inputs boolean  under context parallelism each rank of cp passes the ids of its own tokens alone

-- The options sequence_parallel, loss_parallel, stable, context and inputs of a decoder plan as layouts. A plan without
-- one of these options passes false. With `context` each rank of cp has its own tokens between blocks. In attention it has,
-- with "ulysses", all tokens of its own heads; with "ring", its own queries, and the keys and values of the other ranks arrive
-- rank by rank. Its tokens are then an early and a late chunk of the sequence, so that all ranks have the same work; with
-- "plain_ring" they are one chunk, which is cheaper where every attention has a window much shorter than a chunk, and
-- uneven work elsewhere. "ulysses_ring" is both, on a mesh with two factors of cp: on cp=2x4 a rank has, in attention,
-- some heads of the tokens of its group of 4 ranks, and the keys and values of the other group arrive; it is an error on a
-- mesh with one number for cp, as the others are on one with two. On a mesh without cp it has no effect.
-- With inputs = "whole" (the default) the token ids are full on every rank and are sliced before the embedding; the
-- logits are full on every rank, with loss_parallel those of its own tokens. With inputs = "own" each rank of cp passes
-- the ids, positions, masks and documents of its own tokens, and the logits are those of its own tokens.
---@param opt { sequence_parallel: boolean, loss_parallel: boolean, stable: boolean, context?: string|false, inputs?: string|false }
---@return stream
function transformer.stream(opt)
  local wanted, inputs = false, "whole"
  for key, value in pairs(opt) do  -- a plan need not declare these options
    if key == "context" and value ~= "" then wanted = one_of("context", value, { "ulysses", "ring", "plain_ring", "ulysses_ring" }) end
    if key == "inputs" then inputs = one_of("inputs", value, { "whole", "own" }) end
  end
  local context <const> = mesh.cp > 1 and wanted
  if context == "ulysses_ring" and mesh.cp_heads == 1 then
    error("stream: context = 'ulysses_ring' needs a mesh with two factors of cp, as in cp=2x2 (a ring of 2 groups of 2 ranks that "
      .. "exchange heads); on cp=" .. mesh.cp .. " use 'ulysses' or 'ring'")
  elseif context and context ~= "ulysses_ring" and mesh.cp_heads > 1 then
    error("stream: context = '" .. context .. "' needs a mesh with one number for cp, as in cp=" .. mesh.cp
      .. "; on cp=" .. mesh.cp // mesh.cp_heads .. "x" .. mesh.cp_heads .. " use 'ulysses_ring'")
  end
  local own <const> = inputs == "own"
  if own and not wanted then
    error("stream: inputs = 'own' needs a context, as in context = \"ulysses\"; without one every rank has all tokens")
  end
  if own and context == "ulysses_ring" then
    error("stream: inputs = 'own' cannot be combined with context = 'ulysses_ring'; use inputs = \"whole\"")
  end
  if context and opt.stable then
    error("stream: context = '" .. context .. "' cannot be combined with stable; turn one of them off")
  end
  return {
    residual = tokens({ context = context }, opt.sequence_parallel and shard(1) or replicate),
    logits = (opt.loss_parallel or own) and tokens({ context = context }, opt.loss_parallel and shard(-1) or replicate) or replicate,
    stable = opt.stable,
    context = context,
    own_inputs = own and context ~= false,
  }
end

-- Whether heads are exchanged on cp before and after attention.
local function exchanges_heads(stream) return stream.context == "ulysses" or stream.context == "ulysses_ring" end

-- The number of ranks of cp that exchange heads with each other.
local function ranks_of_heads(stream)
  if not exchanges_heads(stream) then return 1 end
  return stream.context == "ulysses_ring" and mesh.cp_heads or mesh.cp
end

-- Whether attention receives the keys of the other ranks of cp.
local function attends_on_ring(stream)
  return stream.context == "ring" or stream.context == "plain_ring" or stream.context == "ulysses_ring"
end

-- colwise on a stream. `attention`: the output is heads, which under context = "ulysses" are exchanged on cp for all
-- tokens of some of the heads, and under "ulysses_ring" for those of the ranks that exchange heads.
---@param stream stream
---@param o { input: layout, output?: layout, heads?: integer, attention?: boolean }
---@return style
function transformer.column(stream, o)
  check_stream("column", stream)
  o = takes("column", o, { input = "layout", output = "layout", heads = "integer", attention = "boolean" })
  if not stream.context then return colwise { input = o.input, output = o.output, heads = o.heads } end
  local heads <const> = o.attention and exchanges_heads(stream) and on { tp = shard(-1), cp = shard(-1, { heads = o.heads }) }
  return style {
    name = "colwise",
    heads = o.heads,
    params = { weight = shard(0), bias = shard(0) },
    inputs = { { o.input, tokens(stream, shared) } },
    outputs = { { tokens(stream, shard(-1)), o.output or heads or tokens(stream, shard(-1)) } },
  }
end

-- The output projection of a block: from sharded features to the residual stream. rowwise sums terms over the ranks, in
-- an order that depends on their number; for a stable stream the features are gathered and every rank computes full dot
-- products for its own outputs.
---@param stream stream
---@param features? layout  of its input on tp: shard(-1)
---@param heads? integer    the features are those of attention with this many heads; nil: of a block without attention
---@param kv_heads? integer key and value heads of this attention, for a ring; nil: as many as heads
---@param window? integer   tokens to which a token attends, its own included, for the predictions of a ring
---@return style
function transformer.block_end(stream, features, heads, kv_heads, window)
  features = features or shard(-1)
  if stream.stable then return colwise { input = features, output = stream.residual } end
  if not stream.context then return rowwise { input = features, output = stream.residual } end
  local own <const> = tokens(stream, shard(-1))
  return style {
    name = "rowwise",
    params = { weight = shard(1) },
    after = { "bias" },
    inputs = { { heads and exchanges_heads(stream) and on { tp = features, cp = shard(-1, { heads = heads }) }
      or tokens(stream, features), own } },
    outputs = { { tokens(stream, partial), stream.residual } },
    ring = heads and attends_on_ring(stream) and { heads = heads, kv_heads = kv_heads, window = window },
  }
end

-- A projection whose weight is stored as [in, out] (GPT-2's Conv1D), with sharded output features. With `sizes` the
-- output is consecutive parts, as in fused_colwise.
---@param o? { input: layout, sizes: integer[], heads?: integer[] }
---@return style
function transformer.transposed_colwise(o)
  o = takes("transposed_colwise", o, { input = "layout", sizes = "table", heads = "table" })
  local function of(dim)
    return o.sizes and packed(dim, o.sizes, o.heads and { heads = o.heads }) or shard(dim)
  end
  return style {
    name = "transposed_colwise",
    params = { weight = of(1), bias = of(0) },
    inputs = { { o.input or replicate, shared } },
    outputs = { { of(-1), of(-1) } },
  }
end

-- block_end for a weight that is stored as [in, out].
---@param stream stream
---@return style
function transformer.transposed_end(stream)
  if stream.stable then
    return style {
      name = "transposed_colwise",
      params = { weight = shard(1), bias = shard(0) },
      inputs = { { shard(-1), shared } },
      outputs = { { shard(-1), stream.residual } },
    }
  end
  return style {
    name = "transposed_rowwise",
    params = { weight = shard(0) },
    after = { "bias" },
    inputs = { { shard(-1), shard(-1) } },
    outputs = { { partial, stream.residual } },
  }
end

-- A norm (or another per-head scale) on sharded heads: its parameters are replicated, and the gradient of each rank is
-- a term of the sum.
---@return style
function transformer.head_norm()
  return style { name = "head_norm", params = { weight = shared, bias = shared } }
end

-- Checks that these heads fit the mesh: query heads are split between ranks, key heads may also be replicated.
---@param path string  pattern of the attention modules, for the message
---@param heads integer
---@param kv_heads? integer  nil if equal to heads, or without key heads
---@param stream? stream  under context = "ulysses" the heads are split between the ranks of tp and cp, under
---                        "ulysses_ring" between those of tp and of the inner factor of cp
---@return table  for plan{}
function transformer.heads_fit(path, heads, kv_heads, stream)
  local context <const> = stream and exchanges_heads(stream)
  local ranks <const> = mesh.tp * (stream and ranks_of_heads(stream) or 1)
  local inner <const> = stream and stream.context == "ulysses_ring" and "the inner factor of cp=" .. mesh.cp // mesh.cp_heads .. "x" or "cp="
  local over <const> = context and " over tp=" .. mesh.tp .. " and " .. inner .. ranks_of_heads(stream) or ""
  return {
    divides(ranks, heads, "query heads of " .. path .. over),
    kv_heads and fits(ranks, kv_heads, "key heads of " .. path .. over),
  }
end

-- The window of the attention of all layers, by the config of the model; nil if there is none, or only in some layers.
---@return integer?
function transformer.window()
  local window <const> = config:get("sliding_window", false)
  if not window or not config:get("use_sliding_window", true) or config:get("sliding_window_pattern", false) then return nil end
  local kinds <const> = config:get("layer_types", false)
  if not kinds and config:get("use_sliding_window", false) and config:get("max_window_layers", 28) > 0 then return nil end
  for _, kind in ipairs(kinds or {}) do
    if kind ~= "sliding_attention" then return nil end
  end
  return window
end

-- A fused projection whose outputs are consecutive parts, each made of heads: every part is sharded by itself. With a
-- stream under context = "ulysses", `attention`: the parts are queries, keys and values, exchanged on cp as in column.
---@param o { input: layout, sizes: integer[], heads?: integer[], stream?: stream, attention?: boolean }
---@return style
function transformer.fused_colwise(o)
  o = takes("fused_colwise", o, { input = "layout", sizes = "table", heads = "table", stream = "table", attention = "boolean" })
  local stream <const> = o.stream or { context = false }
  local rows <const> = packed(0, o.sizes, o.heads and { heads = o.heads })
  local features <const> = packed(-1, o.sizes, o.heads and { heads = o.heads })
  local own <const> = tokens(stream, features)
  return style {
    name = "fused_colwise",
    params = { weight = rows, bias = rows },
    inputs = { { o.input or replicate, tokens(stream, shared) } },
    outputs = { { own, o.attention and exchanges_heads(stream) and on { tp = features, cp = features } or own } },
  }
end

---@class attention_options
---@field heads     integer  query heads
---@field kv_heads? integer  key and value heads; default: as many as query heads
---@field window?   integer  tokens to which a token attends, its own included; default: all up to its own. Only the
---                          predictions of context = "ring" use it
---@field out?      string   name of the output projection: "o_proj"
---@field q?        string   name of the query projection: "q_proj"
---@field kv?       string   pattern of the key and value projections: "{k,v}_proj"
---@field source?   layout   of the hidden states from which keys and values are computed; default: that of the stream;
---                          replicate in attention to an encoder's outputs
---@field norms?    string   pattern of the norms on query and key heads: "{q,k}_norm"
---@field over_all? boolean  these norms take the mean over all heads (OLMo 2): queries and keys are gathered for them
---@field fused?    string   query, key and value are one projection: "contiguous", all of q, then k, then v; or
---                          "interleaved", for each key head its query heads, the key head, its value head
---@field qkv?      string   name of the fused projection: "qkv_proj"
---@field head_dim? integer  features of a head; only a contiguous projection needs it
---@field all_heads? boolean every rank computes all heads, with replicated weights
---@field gathered? boolean  every rank computes all heads; projections are sharded by rows, and their outputs gathered
---@field transposed? boolean  weights are stored as [in, out]; a fused weight must be "contiguous"

-- Attention with sharded heads: projections split between heads, and the output projection to the stream.
---@param path string  pattern of the attention modules
---@param stream stream
---@param o attention_options
---@return rule[]
function transformer.attention(path, stream, o)
  check_stream("attention", stream)
  o = takes("attention", o, { heads = "integer", kv_heads = "integer", window = "integer", out = "string", norms = "string",
                              q = "string", kv = "string", source = "layout", fused = "string", qkv = "string",
                              head_dim = "integer", all_heads = "boolean", gathered = "boolean",
                              over_all = "boolean", transposed = "boolean", whole = "now all_heads" })
  check_stream("attention", stream, o.all_heads or o.gathered or o.over_all or o.transposed or o.source)
  local residual <const> = stream.residual
  local source <const> = o.source or residual
  local q <const>, kv <const> = path .. "." .. (o.q or "q_proj"), path .. "." .. (o.kv or "{k,v}_proj")
  if not (o.heads or o.all_heads or o.gathered) then error("attention: the key heads is missing, as in { heads = config.num_attention_heads }") end
  local heads <const>, kv_heads <const> = o.heads, o.kv_heads or o.heads
  local fused <const> = one_of("fused", o.fused, { "contiguous", "interleaved" })
  local qkv <const> = path .. "." .. (o.qkv or "qkv_proj")
  local out <const> = path .. "." .. (o.out or "o_proj")
  if o.all_heads or o.gathered then
    local by <const> = o.all_heads and replicated or colwise
    return {
      fused and at(qkv, by { input = residual, output = replicate }),
      not fused and at(q, by { input = residual, output = replicate }),
      not fused and at(kv, by { input = source, output = replicate }),
      o.norms and at(path .. "." .. o.norms, replicated()),
      at(out, by { output = residual }),
    }
  end
  if o.over_all then
    -- The weights are sharded between heads; every rank norms all features, then uses its own heads.
    local function normed(n) return style { name = "norm_of_all", outputs = { { replicate, shard(-1, { heads = n }) } } } end
    return {
      transformer.heads_fit(path, heads, kv_heads),
      at(path .. ".q_proj", colwise { input = residual, heads = heads, output = replicate }),
      at(path .. ".k_proj", colwise { input = residual, heads = kv_heads, output = replicate }),
      at(path .. ".v_proj", colwise { input = residual, heads = kv_heads }),
      at(path .. ".q_norm", normed(heads)),
      at(path .. ".k_norm", normed(kv_heads)),
      at(out, transformer.block_end(stream)),
    }
  end
  local sizes <const> = fused == "contiguous" and { heads * o.head_dim, kv_heads * o.head_dim, kv_heads * o.head_dim }
  local parts <const> = { heads, kv_heads, kv_heads }
  return {
    transformer.heads_fit(path, heads, kv_heads, stream),
    not fused and at(q, transformer.column(stream, { input = residual, heads = heads, attention = true })),
    not fused and at(kv, transformer.column(stream, { input = source, heads = kv_heads, attention = true })),
    sizes and at(qkv, o.transposed and transformer.transposed_colwise { input = residual, sizes = sizes, heads = parts }
      or transformer.fused_colwise { input = residual, sizes = sizes, heads = parts, stream = stream, attention = true }),
    fused == "interleaved" and {
      -- A group's queries cannot be on two ranks.
      divides(mesh.tp * ranks_of_heads(stream), kv_heads, "groups of heads of " .. path),
      at(qkv, transformer.column(stream, { input = residual, heads = kv_heads, attention = true })),
    },
    o.norms and at(path .. "." .. o.norms, transformer.head_norm()),
    at(out, o.transposed and transformer.transposed_end(stream) or transformer.block_end(stream, shard(-1), heads, kv_heads, o.window)),
  }
end

---@class mlp_options
---@field up?      string   pattern of the projections to the intermediate features: "{gate,up}_proj"
---@field down?    string   name of the down projection: "down_proj"
---@field fused?   string   gate and up are one projection: "contiguous", or "interleaved" feature by feature
---@field gate_up? string   name of the fused projection: "gate_up_proj"
---@field size?    integer  the intermediate features; only a fused projection needs it
---@field transposed? boolean  weights are stored as [in, out]; not with `fused`

-- The feed-forward block with sharded intermediate features.
---@param path string  pattern of the modules
---@param stream stream
---@param o? mlp_options
---@return rule[]
function transformer.mlp(path, stream, o)
  check_stream("mlp", stream)
  o = takes("mlp", o, { up = "string", down = "string", fused = "string", gate_up = "string", size = "integer",
                        transposed = "boolean" })
  check_stream("mlp", stream, o.transposed)
  local residual <const> = stream.residual
  local fused <const> = one_of("fused", o.fused, { "contiguous", "interleaved" })
  local gate_up <const> = path .. "." .. (o.gate_up or "gate_up_proj")
  return {
    not fused and at(path .. "." .. (o.up or "{gate,up}_proj"),
                     o.transposed and transformer.transposed_colwise { input = residual }
                     or transformer.column(stream, { input = residual })),
    fused == "contiguous" and at(gate_up, transformer.fused_colwise { input = residual, sizes = { o.size, o.size }, stream = stream }),
    fused == "interleaved" and at(gate_up, transformer.column(stream, { input = residual, heads = o.size })),
    at(path .. "." .. (o.down or "down_proj"),
       o.transposed and transformer.transposed_end(stream) or transformer.block_end(stream)),
  }
end

---@class tower_options
---@field heads      integer
---@field attention? string  name of the attention in a layer: "self_attn"
---@field out?       string  name of its output projection: "out_proj"
---@field qkv?       string  name of its fused projection (all queries, all keys, all values), if it has one
---@field hidden?    integer  features of the hidden states; only a fused projection needs it
---@field mlp?       string  name of the feed-forward block in a layer: "mlp"
---@field up?        string  pattern of its up projections: "fc1"
---@field down?      string  "fc2"

-- The layers of a tower beside the decoder, for images or audio. The stream of the tower is replicated. If its heads do
-- not fit the mesh, its attention is replicated: the mesh is chosen for the heads of the decoder.
---@param layer string  pattern of the layers
---@param stream stream  of the decoder; a tower beside a stable decoder is stable too
---@param o tower_options
---@return table  for plan{}
function transformer.tower(layer, stream, o)
  check_stream("tower", stream, true)
  o = takes("tower", o, { heads = "integer", attention = "string", out = "string", qkv = "string", hidden = "integer",
                          mlp = "string", up = "string", down = "string" })
  local own <const> = transformer.stream { sequence_parallel = false, loss_parallel = false, stable = stream.stable }
  local path <const> = layer .. "." .. (o.attention or "self_attn")
  local fits <const> = o.heads % mesh.tp == 0
  return {
    fits and transformer.attention(path, own, {
      heads = o.heads,
      out = o.out or "out_proj",
      fused = o.qkv and "contiguous",
      qkv = o.qkv,
      head_dim = o.qkv and o.hidden // o.heads,
    }),
    transformer.mlp(layer .. "." .. (o.mlp or "mlp"), own, { up = o.up or "fc1", down = o.down or "fc2" }),
  }
end

-- The embedding of tokens, with its rows of the vocabulary sharded. Under context parallelism the lookup is of a rank's
-- own tokens: the ids are sliced in front of it, or arrive so (stream.own_inputs).
---@param stream stream
---@param output? layout  of the hidden states; default: that of the stream
---@return style
function transformer.embedding(stream, output)
  check_stream("embedding", stream)
  if not stream.context then return vocab_rowwise { output = output or stream.residual } end
  return style {
    name = "vocab_rowwise",
    params = { weight = shard(0) },
    lookup = "masked",
    inputs = { { stream.own_inputs and tokens(stream, replicate) or replicate, tokens(stream, replicate) } },
    outputs = { { tokens(stream, partial), output or stream.residual } },
  }
end

-- A table that is called (of positions, of token types): its features are sharded, and the output is gathered.
---@param vectors? string[]  names of its further parameters, which have one number per feature
---@return style
function transformer.table(vectors)
  local params <const> = { weight = shard(1) }
  for _, name in ipairs(vectors or {}) do params[name] = shard(0) end
  return style {
    name = "table",
    params = params,
    inputs = { { replicate, replicate } },
    outputs = { { shard(-1), replicate } },
  }
end

-- A convolution with one group: its output channels are sharded, and the output is gathered.
---@param kernel_dims integer  2 for a weight [out, in, height, width]
---@return style
function transformer.channels(kernel_dims)
  return style {
    name = "channels",
    params = { weight = shard(0), bias = shard(0) },
    inputs = { { replicate, shared } },
    outputs = { { shard(-1 - kernel_dims), replicate } },
  }
end

---@class ends_options
---@field prefix? string   path of the base model within the model: "model"
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
  check_stream("ends", stream, o.merged)
  local residual <const> = stream.residual
  local prefix <const> = o.prefix or "model"
  local head <const> = o.head or transformer.head()
  local classifies <const> = head == "score"
  assert(not (classifies and stream.own_inputs),
         "inputs = 'own': a classifier uses the logits of one token of each row, which one rank of cp has; use inputs = \"whole\"")
  assert(not classifies or stream.logits == replicate, "loss_parallel: the head of a classifier has too few outputs to be sharded; turn loss_parallel off")
  return {
    at(prefix .. "." .. (o.embed or "embed_tokens"), transformer.embedding(stream, o.merged and replicate)),
    o.merged and residual ~= replicate and at(prefix .. ".layers.0", prepare_input { { replicate, residual } }),
    at(prefix .. "." .. (o.norm or "norm"), norm_on(residual)),
    -- If the head is tied to the embedding, both shard the weight along dim 0.
    at(head, transformer.column(stream, { input = residual, output = stream.logits })),
    -- The layers between the ends: on a mesh with dp, the parameters of a layer are gathered while it is used.
    fsdp { wrap = prefix .. ".layers.*" },
  }
end

-- Rules for layers that predict further tokens (MTP of DeepSeek-V3): a layer with the blocks of the others, after a
-- projection of the normed embedding beside the normed hidden states, and with a norm and a head of its own. Checkpoints
-- have these layers after the others; a model that does not use them does not have them, and gets no rules.
---@param layer string  pattern of the layers: "model.layers.*"
---@param stream stream
---@return table  for plan{}
function transformer.further_tokens(layer, stream)
  check_stream("further_tokens", stream, true)
  local residual <const> = stream.residual
  if not model:has(layer .. ".eh_proj") then return {} end
  return {
    at(layer .. ".embed_tokens", vocab_rowwise { output = residual }, { optional = true }),
    at(layer .. ".{enorm,hnorm}", norm_on(residual)),
    at(layer .. ".eh_proj", colwise { input = residual, output = residual }),
    at(layer .. ".shared_head.norm", norm_on(residual), { optional = true }),
    at(layer .. ".shared_head.head", colwise { input = residual, output = stream.logits }, { optional = true }),
  }
end

-- The ends of a stack of layers under sequence parallelism, for a stack whose inputs and outputs are used in
-- several places (tables of positions, an encoder's outputs): the hidden states are sharded before the first layer and
-- gathered after the last one. Without sequence parallelism there are no rules.
---@param layers string  path of the list of layers: "model.encoder.layers"
---@param stream stream
---@return table  for plan{}
function transformer.stack(layers, stream)
  check_stream("stack", stream, true)
  local residual <const> = stream.residual
  local last = 0  -- headers do not list the layers themselves, only modules with parameters
  for _, found in ipairs(model:find(layers .. ".**")) do
    last = math.max(last, tonumber(string.match(string.sub(found, #layers + 2), "^%d+")) or 0)
  end
  if residual == replicate then return {} end
  local enter <const>, leave <const> = { { replicate, residual } }, { { residual, replicate } }
  if last == 0 then return { at(layers .. ".0", style { name = "stack", inputs = enter, outputs = leave }) } end
  return { at(layers .. ".0", prepare_input(enter)), at(layers .. "." .. last, prepare_output(leave)) }
end

-- The first of the names for which there is a module at `path`, or parameters below it; nil for none. An empty path is
-- the model.
---@param path string
---@param names string[]
---@return string?
function transformer.first(path, names)
  for _, name in ipairs(names) do
    local there <const> = path == "" and name or path .. "." .. name
    if model:has(there) or model:has(there .. ".**") then return name end
  end
  return nil
end

-- Rules for the other modules beside an embedding: the children of `path` that have parameters of their own and whose
-- name is not in `names`. Those in `tables` that own a `weight` alone are sharded as tables, all others are replicated.
---@param path string  "" is the model
---@param names string[]
---@param tables? string[]
---@return rule[]
function transformer.beside(path, names, tables)
  local known <const>, called <const>, rules <const> = {}, {}, {}
  for _, name in ipairs(names) do known[name] = true end
  for _, name in ipairs(tables or {}) do called[name] = true end
  for _, found in ipairs(model:find(path == "" and "*" or path .. ".*")) do
    local name <const>, owned <const> = string.match(found, "[^.]+$"), model:parameters(found)
    local shards <const> = called[name] and #owned == 1 and owned[1] == "weight"
    if #owned > 0 and not known[name] then table.insert(rules, at(found, shards and transformer.table() or replicated())) end
  end
  return rules
end

-- The path of the head: "score" for classes of Hugging Face for sequence classification, else "lm_head".
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
---@field merged boolean  whether the decoder is part of a model with other inputs

-- The decoder of a text model (its config is config.json, its path "model"), or of a model with images: there its
-- config is text_config, and its path is "model.language_model" or, in checkpoints of older versions and in classes
-- that contain such a model, one of the other paths below.
---@return text_model
function transformer.text_model()
  local text <const> = config:get("text_config", false)
  if not text then return { config = config, prefix = "model", head = transformer.head(), merged = false } end
  local prefix, around = "model.language_model", ""
  for _, path in ipairs { "language_model.model", "model", "model.language_model.model", "model.model.language_model" } do
    if model:has(path .. ".embed_tokens") then prefix = path end
  end
  for _, path in ipairs { "language_model.", "model.language_model.", "model." } do
    if model:has(path .. "lm_head") then around = path end
  end
  return { config = text, prefix = prefix, head = around == "" and transformer.head() or around .. "lm_head", merged = true }
end

-- Patterns of the layers with the same value of key_of(i), for layer i from 0, by that value: "model.layers.{0,2,5}".
-- Layers whose value is nil or false are skipped.
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
