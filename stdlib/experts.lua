-- experts.lua: blocks with a router and experts. The intermediate features of every expert are sharded as in an mlp:
-- each rank computes a term of the output of every expert, and the output of the block is reduced once.

---@class experts
local experts = {}

---@class experts_options
---@field size    integer  wide features of an expert
---@field gate?   string   name of the router: "gate"
---@field up?     string   if every expert is a module: pattern of its up projections, "{gate,up}_proj"
---@field down?   string   and name of its down projection, "down_proj"
---@field fused?  boolean  if the experts are one module with stacked parameters: gate_up_proj [experts, 2 * size,
---                        hidden] contains gate and up; false: up_proj [experts, size, hidden] alone
---@field shared? string   path within the block of an mlp that every token passes: "shared_experts"
---@field count?  integer  number of experts
---@field whole?  boolean  expert parallelism: each rank owns full experts, the first ones on the first rank;
---                        requires `count` if experts are modules

-- A router, or an expert of a router, whose gradient on each rank is a term of the sum.
local function summed() return style { name = "summed", params = { weight = shared, bias = shared } } end

-- Redistributions of the input and output of a block without parameters.
local function block(input, output) return style { name = "experts_block", inputs = { input }, outputs = { output } } end

-- Layouts of stacked experts: each sharded, or full ones on each rank.
local function stacked_params(o)
  if o.whole then return { ["*"] = shard(0) } end
  if o.fused == false then return { up_proj = shard(1), down_proj = shard(2) } end
  return { gate_up_proj = packed(1, { o.size, o.size }), down_proj = shard(2) }
end

-- The experts as one module, called with the tokens, the ids of their experts and the weights of these; an id equal to
-- the number of local experts belongs to another rank. The router computes the same on every rank, so a loss on its
-- logits is right too.
local function stacked(path, stream, o)
  return {
    stream.residual ~= replicate and at(path, block({ stream.residual, replicate }, { replicate, stream.residual })),
    at(path .. "." .. (o.gate or "gate"), replicated()),
    at(path .. ".experts", style {
      name = "experts",
      params = stacked_params(o),
      inputs = { { replicate, shared }, false, { replicate, shared } },
      outputs = { { partial, replicate } },
      route = o.whole and { of = "inputs", ids = 2, weights = 3 },
    }),
    o.shared and {
      at(path .. "." .. o.shared .. "." .. (o.up or "{gate,up}_proj"), colwise {}),
      at(path .. "." .. o.shared .. "." .. (o.down or "down_proj"), rowwise {}),
    },
  }
end

-- Projections of an expert that one rank owns. That rank has all of its features, and the others have none: their
-- output for a token is zero, a term of the sum.
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

-- Rules for full experts, distributed evenly over the ranks up to one.
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

-- One module per expert, called with some of the tokens. Sharded compute uses the input of the block, and so does the
-- router; a loss on the router's logits that every rank adds would count once per rank.
local function listed(path, stream, o)
  local up <const>, down <const> = colwise { input = shared }, rowwise { output = partial }
  return {
    at(path, block({ stream.residual, shared }, { partial, stream.residual })),
    at(path .. "." .. (o.gate or "gate"), summed()),
    o.whole and spread(path, o) or {
      at(path .. ".experts.*." .. (o.up or "{gate,up}_proj"), up),
      at(path .. ".experts.*." .. (o.down or "down_proj"), down),
    },
    o.shared and {
      at(path .. "." .. o.shared .. "." .. (o.up or "{gate,up}_proj"), up),
      at(path .. "." .. o.shared .. "." .. (o.down or "down_proj"), down),
    },
  }
end

-- Without reductions over ranks, every rank computes all experts.
local function whole(path, stream)
  return {
    stream.residual ~= replicate and at(path, block({ stream.residual, replicate }, { replicate, stream.residual })),
    at(path .. ".*.**", replicated()),
  }
end

-- A block with experts. Its form is read from the model.
---@param path string  pattern of the blocks, all of one form
---@param stream stream
---@param o experts_options
---@return rule[]
function experts.block(path, stream, o)
  o = takes("experts", o, { size = "integer", gate = "string", up = "string", down = "string", fused = "boolean",
                            shared = "string",
                            count = "integer", whole = "boolean" })
  if stream.stable then return whole(path, stream) end
  if model:has(path .. ".experts.*." .. (o.down or "down_proj")) then return listed(path, stream, o) end
  return stacked(path, stream, o)
end

-- Pattern of the layers of "model.layers" that have a router at this path within them: "model.layers.{1,2}".
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
