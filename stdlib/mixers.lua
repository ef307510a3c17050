-- mixers.lua: mixers of tokens without attention. Their heads are sharded like those of attention, or every rank
-- computes all heads from shards of the projections.
--
--   local mixers <const> = require "mixers"
--   mixers.mamba2("model.layers.*.mamba", stream, { heads = 24, groups = 1, state = 256, by_heads = true })

local transformer <const> = require "transformer"

---@class mixers
local mixers = {}

---@class mamba2_options
---@field heads     integer
---@field groups    integer   groups of heads with the same B and C
---@field state     integer   features of B and C in a group
---@field by_heads? boolean   true: each rank has some of the heads, and nothing is gathered but the features of a norm
---                           whose groups are on several ranks. The model's forward must read the numbers of heads and
---                           groups from its tensors. false: every rank computes all heads; the projections are sharded
---                           by rows, and their outputs gathered
---@field norm?     string    name of the norm on the features before the output projection, called with these features
---                           and perhaps the gate; nil: there is none
---@field norm_groups? integer  groups of features over which the norm takes its mean: `groups`, or 1 for all features

-- The name of every parameter of one of the modules, with its layout by head.
local function of_heads(path, n_heads, parts)
  local params <const> = {}
  for _, name in ipairs(model:parameters(model:find(path)[1])) do
    -- A factor for each output of in_proj (Falcon-H1), which only an exported program has.
    params[name] = name == "mup_vector" and parts(-1) or shard(0, { heads = n_heads })
  end
  return params
end

-- A norm on the features of all heads, in groups. Where a group is on several ranks the features are gathered for it.
local function group_norm(o)
  local groups <const> = o.norm_groups or o.groups
  if groups % mesh.tp == 0 then
    return style {
      name = "group_norm",
      params = { ["*"] = shard(0, { heads = groups }) },
      inputs = { { shard(-1), shard(-1) } },
      outputs = { { shard(-1), shard(-1) } },
    }
  end
  local features <const> = shard(-1, { heads = o.heads })
  return style {
    name = "norm_of_all",
    inputs = { { features, replicate }, { features, replicate } },
    outputs = { { replicate, features } },
  }
end

-- A Mamba 2 mixer: in_proj to the gate, the features of the heads, B, C and one time step per head; a convolution of
-- single channels over features, B and C; `A_log`, `D` and `dt_bias` per head; out_proj. With fewer groups than ranks,
-- several ranks have the same B and C.
---@param path string  pattern of the mixers
---@param stream stream
---@param o mamba2_options
---@return table  for plan{}
function mixers.mamba2(path, stream, o)
  o = takes("mamba2", o, { heads = "integer", groups = "integer", state = "integer", by_heads = "boolean", norm = "string",
                           norm_groups = "integer" })
  if stream.context then error("mamba2: context = '" .. stream.context .. "' is not supported; turn it off, or use a mesh without cp") end
  local residual <const> = stream.residual
  local norm <const> = o.norm and path .. "." .. o.norm
  if not o.by_heads then
    return {
      at(path, replicated { input = residual, output = residual }),
      at(path .. ".{in,out}_proj", colwise { output = replicate }),
      at(path .. ".conv1d", replicated()),
      norm and at(norm, replicated()),
    }
  end
  local features <const> = model:shape(model:find(path .. ".out_proj")[1] .. ".weight")[2]
  local n <const>, groups <const> = o.heads, o.groups
  local shared_part <const> = groups * o.state
  local function outputs(dim)
    return packed(dim, { features, features, shared_part, shared_part, n }, { heads = { n, n, groups, groups, n } })
  end
  local channels <const> = packed(0, { features, shared_part, shared_part }, { heads = { n, groups, groups } })
  return {
    divides(mesh.tp, n, "heads of " .. path),
    fits(mesh.tp, groups, "groups of heads of " .. path),
    -- All tokens: the forward takes their number from its input.
    at(path, style { name = "mamba2", params = of_heads(path, n, outputs), inputs = { { residual, shared } } }),
    at(path .. ".in_proj", style {
      name = "fused_colwise",
      params = { weight = outputs(0), bias = outputs(0) },
      inputs = { { shared, shared } },
      outputs = { { outputs(-1), outputs(-1) } },
    }),
    at(path .. ".conv1d", style { name = "channels", params = { weight = channels, bias = channels } }),
    norm and at(norm, group_norm(o)),
    at(path .. ".out_proj", transformer.block_end(stream)),
  }
end

return mixers
