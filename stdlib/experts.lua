-- experts.lua: blocks with a router and experts. The intermediate features of every expert are sharded as in an mlp:
-- each rank computes a term of the output of every expert, and the output of the block is reduced once. Full experts
-- can be distributed over the ranks of tp, which have the same tokens, or over those of ep, to which tokens are sent.

local transformer <const> = require "transformer"

---@class experts
local experts = {}

---@class experts_options
---@field size    integer  intermediate features of an expert
---@field gate?   string   name of the router: "gate"
---@field up?     string   pattern of the up projections: in an expert if every expert is a module, "{gate,up}_proj";
---                        or in the block if each projection is a module of all experts. In the second case, with
---                        `size`, the pattern matches one projection to both gate and up
---@field down?   string   name of the down projection, within the same module: "down_proj"
---@field transposed? boolean  projections that are modules of all experts store their weights as [experts, in, out]
---@field fused?  boolean  if the experts are one module with stacked parameters: gate_up_proj [experts, 2 * size,
---                        hidden] contains gate and up; false: only up_proj [experts, size, hidden]
---@field identity? string  name, within the module of the experts, of a module that returns its tokens, for experts
---                        without weights: each rank adds a fraction of these tokens. Not with `parallel`
---@field shared? string   path within the block of the shared mlp, which processes every token: "shared_experts"
---@field shared_up?   string   pattern of the shared mlp's up projections, if not `up`
---@field shared_down? string   name of the shared mlp's down projection, if not `down`
---@field shared_size? integer  the shared mlp has one gate_up_proj to gate and up, of this many features each
---@field shared_stacked? boolean  `shared` is a module of several mlps, called with the tokens and a weight per mlp:
---                        {gate,up}_proj [mlps, features, hidden], down_proj [mlps, hidden, features]
---@field shared_gate? string  name of a projection to one value per token, which multiplies the shared mlp's output
---@field count?  integer  number of experts
---@field parallel? string  "tp" (the default): tp shards every expert; "owned": each rank of tp owns full experts, the
---                        first experts on the first rank; "exchange": each rank of ep has some experts, which tp may
---                        shard, and every token is sent to the ranks of its experts, and the results back; without ep
---                        in the mesh as "tp". "owned" and "exchange" require `count` if experts are modules
---@field expert_parallel?  boolean  true: parallel = "owned"
---@field per_token? integer  experts of a token, for "exchange": num_experts_per_tok of config.json
---@field capacity? number  of "exchange": an expert takes at most this multiple of the mean number of tokens from each
---                        rank, and further tokens are dropped; nil: no token is dropped
---@field features? integer  features of a token, for "exchange": hidden_size of config.json

-- Checks that the stream has no context parallelism, with which only experts that are modules are supported.
local function no_context(stream)
  if stream and stream.context then
    error("experts: context = '" .. stream.context .. "' is supported only for experts that are modules; turn it off, or use a mesh without cp")
  end
end

-- The style of a router or a gate whose gradient on each rank is a term of the sum.
local function summed() return style { name = "summed", params = { weight = shared, bias = shared } } end

-- Redistributions of the input and output of a block module, which owns no parameters.
local function block(input, output) return style { name = "experts_block", inputs = { input }, outputs = { output } } end

-- The rule of a block that takes the full sequence on every rank; false if the stream is replicated already.
---@param path string  pattern of the blocks
---@param stream stream
---@return rule|false
function experts.gathered(path, stream)
  no_context(stream)
  return stream.residual ~= replicate and at(path, block({ stream.residual, replicate }, { replicate, stream.residual }))
end

-- Layouts of stacked experts: each expert is sharded, and the experts are distributed over ep with an exchange; or each
-- rank has full experts.
local function stacked_params(o)
  if o.parallel == "owned" then return { ["*"] = shard(0) } end
  local function expert(layout) return o.parallel == "exchange" and on { tp = layout, ep = shard(0) } or layout end
  if o.fused == false then return { up_proj = expert(shard(1)), down_proj = expert(shard(2)) } end
  return { gate_up_proj = expert(packed(1, { o.size, o.size })), down_proj = expert(shard(2)) }
end

-- The exchange of a call of experts with tokens, ids and weights. `listed`: number of experts that are modules.
local function exchange(o, listed)
  if o.parallel ~= "exchange" then return nil end
  return { tokens = 1, ids = 2, weights = 3, per_token = o.per_token or config.num_experts_per_tok,
           features = o.features or config.hidden_size, capacity = o.capacity, listed = listed }
end

-- The rules of the shared mlp.
local function shared_mlp(path, o, input, output)
  if not o.shared then return false end
  local mlp <const> = path .. "." .. o.shared .. "."
  local sizes <const> = o.shared_size and { o.shared_size, o.shared_size }
  if o.shared_stacked then
    return at(path .. "." .. o.shared, style {
      name = "shared_experts",
      params = { gate_proj = shard(1), up_proj = shard(1), down_proj = shard(2) },
      inputs = { { input, shared }, { input, shared } },
      outputs = { { partial, output } },
    })
  end
  return {
    sizes and at(mlp .. "gate_up_proj", transformer.fused_colwise { input = input, sizes = sizes }),
    not sizes and at(mlp .. (o.shared_up or o.up or "{gate,up}_proj"), colwise { input = input }),
    at(mlp .. (o.shared_down or o.down or "down_proj"), rowwise { output = output }),
  }
end

-- Rules for projections that are modules of all experts, with stacked weights [experts, out, in], or transposed, called
-- with the tokens sorted by expert. Their partial outputs are summed before the router's weights multiply them.
local function linears(path, stream, o)
  if o.parallel ~= "tp" then error("experts: parallel = '" .. o.parallel .. "' is not supported if each projection is a module of all experts") end
  local rows <const>, columns <const> = o.transposed and 2 or 1, o.transposed and 1 or 2
  local function features(dim) return o.size and packed(dim, { o.size, o.size }) or shard(dim) end
  return {
    experts.gathered(path, stream),
    at(path .. "." .. (o.gate or "gate"), replicated()),
    at(path .. "." .. (o.up or "{gate,up}_proj"), style {
      name = "experts_up",
      params = { weight = features(rows) },
      inputs = { { replicate, shared } },
      outputs = { { features(-1), features(-1) } },
    }),
    at(path .. "." .. (o.down or "down_proj"), style {
      name = "experts_down",
      params = { weight = shard(columns) },
      inputs = { { shard(-1), shard(-1) } },
      outputs = { { partial, replicate } },
    }),
    shared_mlp(path, o, replicate, replicate),
    o.shared_gate and at(path .. "." .. o.shared_gate, replicated()),
  }
end

-- The rule of the module that returns tokens.
local function identity_expert(path, o)
  return o.identity and at(path .. ".experts." .. o.identity, style { name = "identity_expert", inputs = { { shared, partial } } })
end

-- Rules for experts in one module, called with the tokens, the ids of the chosen experts and the weights of these
-- experts; an id equal to the number of local experts is an expert of another rank. The router computes the same on
-- every rank, so a loss on its logits is right too.
local function stacked(path, stream, o)
  return {
    experts.gathered(path, stream),
    at(path .. "." .. (o.gate or "gate"), replicated()),
    at(path .. ".experts", style {
      name = "experts",
      params = stacked_params(o),
      inputs = { { replicate, shared }, false, { replicate, shared } },
      outputs = { { partial, replicate } },
      route = o.parallel == "owned" and { of = "inputs", ids = 2, weights = 3 },
      exchange = exchange(o),
    }),
    identity_expert(path, o),
    shared_mlp(path, o, replicate, replicate),
    o.shared_gate and at(path .. "." .. o.shared_gate, replicated()),
  }
end

-- Styles of the projections of an expert that one rank owns. The owner has all features of the expert, the other ranks
-- have no features: on these ranks, the output for a token is zero, which is added in the sum.
local function owned(owner)
  local rows <const>, columns <const>, features <const> =
    shard(0, { owner = owner }), shard(1, { owner = owner }), shard(-1, { owner = owner })
  return style {
    name = "owned_up",
    params = { weight = rows, bias = rows },
    inputs = { { shared, shared } },
    outputs = { { features, features } },
  }, style {
    name = "owned_down",
    params = { weight = columns },
    inputs = { { features, features } },
    outputs = { { partial, partial } },
  }
end

-- Rules for full experts, distributed over the ranks in numbers that differ by at most one.
local function spread(path, o)
  local rules <const> = {}
  for rank = 0, mesh.tp - 1 do
    local first <const>, last <const> = o.count * rank // mesh.tp, o.count * (rank + 1) // mesh.tp - 1
    local up <const>, down <const> = owned(rank)
    local each <const> = path .. ".experts.{" .. first .. ".." .. last .. "}."
    if first <= last then
      table.insert(rules, at(each .. (o.up or "{gate,up}_proj"), up))
      table.insert(rules, at(each .. (o.down or "down_proj"), down))
    end
  end
  return rules
end

-- Styles of the projections of an expert on one rank of ep, on which tp shards its intermediate features. On the other
-- ranks it has no features and no tokens.
local function distributed(owner)
  local rows <const> = on { tp = shard(0), ep = shard(0, { owner = owner }) }
  return style {
    name = "exchanged_up",
    params = { weight = rows, bias = rows },
    inputs = { { shared, shared } },
    outputs = { { shard(-1), shard(-1) } },
  }, style {
    name = "exchanged_down",
    params = { weight = on { tp = shard(1), ep = shard(1, { owner = owner }) } },
    inputs = { { shard(-1), shard(-1) } },
    outputs = { { partial, partial } },
  }
end

-- Rules for experts that are distributed over ep in blocks, and for the module that calls them.
local function exchanged(path, o)
  if (o.count or 0) < 1 then error("experts: parallel = 'exchange' requires the number of experts, 'count', where each expert is a module") end
  local each_rank <const> = (o.count + mesh.ep - 1) // mesh.ep
  local rules <const> = {
    at(path .. ".experts", style { name = "experts_exchange", outputs = { { partial, partial } }, exchange = exchange(o, o.count) }),
  }
  for rank = 0, (o.count - 1) // each_rank do
    local last <const> = math.min((rank + 1) * each_rank, o.count) - 1
    local up <const>, down <const> = distributed(rank)
    local each <const> = path .. ".experts.{" .. rank * each_rank .. ".." .. last .. "}."
    table.insert(rules, at(each .. (o.up or "{gate,up}_proj"), up))
    table.insert(rules, at(each .. (o.down or "down_proj"), down))
  end
  return rules
end

-- Rules for experts that are modules, called with some of the tokens. The experts and the router use the input of the
-- block as shared, so a loss on the router's logits that every rank adds would count once per rank.
local function listed(path, stream, o)
  local up <const>, down <const> = colwise { input = shared }, rowwise { output = partial }
  return {
    at(path, block({ stream.residual, transformer.tokens(stream, shared) },
                   { transformer.tokens(stream, partial), stream.residual })),
    at(path .. "." .. (o.gate or "gate"), summed()),
    o.parallel == "owned" and spread(path, o) or o.parallel == "exchange" and exchanged(path, o) or {
      at(path .. ".experts.*." .. (o.up or "{gate,up}_proj"), up),
      at(path .. ".experts.*." .. (o.down or "down_proj"), down),
    },
    identity_expert(path, o),
    shared_mlp(path, o, shared, partial),
    o.shared_gate and at(path .. "." .. o.shared_gate, summed()),  -- its output multiplies a term of the sum
  }
end

-- Rules with which every rank computes all experts, without a reduction over ranks.
---@param path string  pattern of the blocks
---@param stream stream
---@return rule[]
function experts.replicated(path, stream)
  return {
    experts.gathered(path, stream),
    at(path .. ".*.**", replicated()),
  }
end

-- The value of `parallel`, with its default.
local function parallel_of(o)
  local names <const> = { tp = true, owned = true, exchange = true }
  if o.parallel and not names[o.parallel] then
    error("experts: parallel = '" .. o.parallel .. "': it must be one of 'tp', 'owned', 'exchange'")
  end
  if o.expert_parallel and o.parallel and o.parallel ~= "owned" then
    error("experts: expert_parallel = true is parallel = 'owned', and parallel = '" .. o.parallel .. "'; leave one of them out")
  end
  local parallel <const> = o.parallel or o.expert_parallel and "owned" or "tp"
  return parallel == "exchange" and mesh.ep == 1 and "tp" or parallel
end

-- Rules for a block with experts. The form of the experts is read from the model.
---@param path string  pattern of the blocks, all of one form
---@param stream stream
---@param o experts_options
---@return rule[]
function experts.block(path, stream, o)
  o = takes("experts", o, { size = "integer", gate = "string", up = "string", down = "string", fused = "boolean",
                            identity = "string", shared = "string", shared_gate = "string", shared_up = "string",
                            shared_down = "string", shared_size = "integer",
                            shared_stacked = "boolean", transposed = "boolean",
                            count = "integer", parallel = "string", expert_parallel = "boolean",
                            per_token = "integer", features = "integer", capacity = "number",
                            whole = "now expert_parallel" })
  o.parallel = parallel_of(o)
  if o.identity and o.parallel ~= "tp" then
    error("experts: parallel = '" .. o.parallel .. "' is not supported with experts that return their tokens; leave it out")
  end
  if stream.stable and o.parallel == "exchange" then
    error("experts: parallel = 'exchange' cannot be combined with stable; turn one of them off")
  end
  if stream.stable then return experts.replicated(path, stream) end
  local down <const> = o.down or "down_proj"
  if model:has(path .. ".experts.*." .. down) then return listed(path, stream, o) end
  no_context(stream)
  if model:has(path .. "." .. down) then return linears(path, stream, o) end
  return stacked(path, stream, o)
end

-- The pattern of the layers that have a router at this path within them: "model.layers.{1,2}"; nil if no layer has one.
---@param prefix string  "model.layers"
---@param router string  "mlp.gate"
---@return string?
function experts.layers(prefix, router)
  local numbers <const> = {}
  for _, path in ipairs(model:find(prefix .. ".*." .. router)) do
    table.insert(numbers, tonumber(string.match(string.sub(path, #prefix + 2), "^(%d+)%.")))
  end
  table.sort(numbers)
  if #numbers == 0 then return nil end
  return prefix .. ".{" .. table.concat(numbers, ",") .. "}"
end

return experts
