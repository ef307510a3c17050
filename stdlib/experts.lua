-- experts.lua: blocks with a router and experts. The wide features of every expert lie over the ranks, as those of an
-- mlp do: each rank computes a term of every expert's output, and the block's output is summed once.

---@class experts
local experts = {}

---@class experts_options
---@field size    integer  wide features of an expert
---@field gate?   string   name of the router: "gate"
---@field up?     string   where every expert is a module: pattern of its projections up, "{gate,up}_proj"
---@field down?   string   and name of the one back, "down_proj"
---@field fused?  boolean  where the experts are one module with stacked parameters: gate_up_proj [experts, 2 * size,
---                        hidden] holds gate and up; false: up_proj [experts, size, hidden] alone
---@field shared? string   path within the block of an mlp that every token takes: "shared_experts"
---@field count?  integer  number of experts
---@field whole?  boolean  expert parallelism: every expert lies whole on one rank, the first ones on the first rank;
---                        needs `count` where experts are modules

-- A router, or a router's expert, where each rank adds a term to its gradient.
local function summed() return style { name = "summed", params = { weight = shared, bias = shared } } end

-- Moves of the block's input and output; it owns no parameter.
local function block(input, output) return style { name = "experts_block", inputs = { input }, outputs = { output } } end

-- What lies where of stacked experts: pieces of each, or some of them whole.
local function stacked_params(o)
  if o.whole then return { ["*"] = shard(0) } end
  if o.fused == false then return { up_proj = shard(1), down_proj = shard(2) } end
  return { gate_up_proj = packed(1, { o.size, o.size }), down_proj = shard(2) }
end

-- The experts as one module, called with the tokens, the ids of their experts and the weights of those; an id that is the
-- number of its experts is another rank's. The router works the same on every rank, so a loss on its logits is right too.
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

-- Projections of an expert that lies on one rank. There its features are whole, and the others have none: what they make
-- of a token is zero, a term of the sum like any other.
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

-- Rules for whole experts, as many on each rank as on the others or one more.
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

-- One module an expert, each called with some of the tokens. The block's input is used by sharded compute, the router's
-- use of it too; a loss on the router's logits that every rank adds would count once a rank.
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

-- Where nothing may be summed over ranks, every rank computes all experts.
local function whole(path, stream)
  return {
    stream.residual ~= replicate and at(path, block({ stream.residual, replicate }, { replicate, stream.residual })),
    at(path .. ".*.**", replicated()),
  }
end

-- A block with experts. Which form it has is asked of the model.
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
