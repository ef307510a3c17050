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

-- A router, or a router's expert, where each rank adds a term to its gradient.
local function summed() return style { name = "summed", params = { weight = shared, bias = shared } } end

-- Moves of the block's input and output; it owns no parameter.
local function block(input, output) return style { name = "experts_block", inputs = { input }, outputs = { output } } end

-- The experts as one module, called with the tokens, the ids of their experts and the weights of those. The router works
-- the same on every rank, so a loss on its logits is right too.
local function stacked(path, stream, o)
  local wide <const> = o.fused == false and { up_proj = shard(1) } or { gate_up_proj = packed(1, { o.size, o.size }) }
  return {
    stream.residual ~= replicate and at(path, block({ stream.residual, replicate }, { replicate, stream.residual })),
    at(path .. "." .. (o.gate or "gate"), replicated()),
    at(path .. ".experts", style {
      name = "experts",
      params = { gate_up_proj = wide.gate_up_proj, up_proj = wide.up_proj, down_proj = shard(2) },
      inputs = { { replicate, shared }, false, { replicate, shared } },
      outputs = { { partial, replicate } },
    }),
    o.shared and {
      at(path .. "." .. o.shared .. "." .. (o.up or "{gate,up}_proj"), colwise {}),
      at(path .. "." .. o.shared .. "." .. (o.down or "down_proj"), rowwise {}),
    },
  }
end

-- One module an expert, each called with some of the tokens. The block's input is used by sharded compute, the router's
-- use of it too; a loss on the router's logits that every rank adds would count once a rank.
local function listed(path, stream, o)
  local each <const> = path .. (o.shared and ".{experts.*," .. o.shared .. "}." or ".experts.*.")
  return {
    at(path, block({ stream.residual, shared }, { partial, stream.residual })),
    at(path .. "." .. (o.gate or "gate"), summed()),
    at(each .. (o.up or "{gate,up}_proj"), colwise { input = shared }),
    at(each .. (o.down or "down_proj"), rowwise { output = partial }),
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
                            shared = "string" })
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
