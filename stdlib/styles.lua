-- styles.lua: the named styles. Each is a function that takes a table and returns a style: the layouts of a module's
-- parameters, and the redistributions of its inputs and outputs. A custom style is a function like these.

---@meta
---@class layout  placement of a tensor on ranks of a mesh axis: replicate, shared, shard(d), partial, packed(d, sizes)
---@class style   what a rule does to the modules it claims

---@class styles
local styles = {}

-- Output features are sharded: every rank computes its own features from the full input.
---@param o? colwise_keys
---@return style
function styles.colwise(o)
  o = takes("colwise", o)
  return style {
    name = "colwise",
    heads = o.heads,
    params = { weight = shard(0), bias = shard(0) },
    kinds = { Embedding = { weight = shard(1) } },
    inputs = { { o.input or replicate, shared } },
    outputs = { { shard(-1), o.output or shard(-1) } },
  }
end

-- Input features are sharded: every rank computes a term of the sum. The bias is added once, after the sum. For an
-- embedding or an embedding bag, the rows are sharded, as in vocab_rowwise.
---@param o? rowwise_keys
---@return style
function styles.rowwise(o)
  o = takes("rowwise", o)
  return style {
    name = "rowwise",
    heads = o.heads,
    params = { weight = shard(1) },
    after = { "bias" },
    inputs = { { o.input or shard(-1), shard(-1) } },
    outputs = { { partial, o.output or replicate } },
    kinds = {
      Embedding = style {
        name = "rowwise",
        params = { weight = shard(0) },
        lookup = "masked",
        inputs = { { replicate, replicate } },
        outputs = { { partial, o.output or replicate } },
      },
    },
  }
end

-- An embedding or an embedding bag with sharded rows: ids whose row another rank owns give zeros.
---@param o? vocab_rowwise_keys
---@return style
function styles.vocab_rowwise(o)
  o = takes("vocab_rowwise", o)
  return style {
    name = "vocab_rowwise",
    params = { weight = shard(0) },
    lookup = "masked",
    inputs = { { replicate, replicate } },
    outputs = { { partial, o.output or replicate } },
  }
end

-- A module that treats all tokens alike (a norm, dropout), on shards of the sequence. Its parameters are replicated,
-- and the gradient of each rank is a term of the sum.
---@param o? sequence_parallel_keys
---@return style
function styles.sequence_parallel(o)
  o = takes("sequence_parallel", o)
  local sequence <const> = shard(o.dim or 1)
  return style {
    name = "sequence_parallel",
    params = { weight = shared, bias = shared },
    inputs = { { sequence, sequence } },
    outputs = { { sequence, o.output or sequence } },
  }
end

-- A rotary embedding on the residual stream: its inputs are the hidden states, used only for their dtype, and the
-- positions, full on every rank; cos and sin are full on every rank.
---@param residual layout  replicate, or shard(1) under sequence parallelism
---@return style
function styles.rotary_on(residual)
  residual = takes("rotary_on", { residual = residual }, { residual = "needed layout" }).residual
  return style {
    name = "rotary",
    inputs = { { residual, residual }, { replicate, replicate } },
    outputs = { { replicate, replicate }, { replicate, replicate } },
  }
end

-- A module that computes the same on every rank.
---@param o? replicated_keys
---@return style
function styles.replicated(o)
  o = takes("replicated", o)
  return style {
    name = "replicated",
    inputs = o.input and { { o.input, replicate } },
    outputs = o.output and { { replicate, o.output } },
  }
end

-- A norm on the residual stream, which has the layout `residual` before and after the norm.
---@param residual layout  replicate, or shard(1) under sequence parallelism; also on cp
---@return style
function styles.norm_on(residual)
  residual = takes("norm_on", { residual = residual }, { residual = "needed layout" }).residual
  local full <const> = residual == replicate or residual == on { cp = shard(1) }
    or residual == on { cp = shard(1, { zigzag = true }) }  -- on tp
  local used <const> = full and replicate or shared
  return style {
    name = "norm",
    params = { weight = used, bias = used },
    inputs = { { residual, residual } },
    outputs = { { residual, residual } },
  }
end

-- Redistributions of the inputs of a module, by position; false: no redistribution.
---@param redistributions (layout[]|false)[]  { { from, to }, ... }
---@return style
function styles.prepare_input(redistributions)
  return style { name = "prepare_input", inputs = redistributions }
end

-- Redistributions of the outputs of a module, by position; false: no redistribution.
---@param redistributions (layout[]|false)[]  { { from, to }, ... }
---@return style
function styles.prepare_output(redistributions)
  return style { name = "prepare_output", outputs = redistributions }
end

-- The styles of channels. Those of a convolution over n positions are dim -1 - n, so that an input without a batch fits
-- too; of other modules they are dim 1. `make` gets the dim, and the dims of the output and the input channels in the
-- weight, which is [out, in / groups, positions...], or of a transposed convolution [in, out / groups, positions...].
---@param make fun(channels: integer, out: integer, inp: integer, kinds?: table<string, style>): style
---@return style
local function of_channels(make)
  local kinds <const> = {}
  for positions = 1, 3 do
    kinds["Conv" .. positions .. "d"] = make(-1 - positions, 0, 1)
    kinds["ConvTranspose" .. positions .. "d"] = make(-1 - positions, 1, 0)
  end
  return make(1, 0, 1, kinds)
end

-- A convolution whose output channels are sharded: colwise for convolutions. With groups: channelwise.
---@param o? channels_out_keys
---@return style
function styles.channels_out(o)
  o = takes("channels_out", o)
  return of_channels(function(channels, out, _, kinds)
    return style {
      name = "channels_out",
      params = { weight = shard(out), bias = shard(0) },
      inputs = { { o.input or replicate, shared } },
      outputs = { { shard(channels), o.output or shard(channels) } },
      kinds = kinds,
    }
  end)
end

-- A convolution whose input channels are sharded: rowwise for convolutions. Every rank computes a term of the sum, and
-- the bias is added once, after the sum. With groups: channelwise.
---@param o? channels_in_keys
---@return style
function styles.channels_in(o)
  o = takes("channels_in", o)
  return of_channels(function(channels, _, inp, kinds)
    return style {
      name = "channels_in",
      params = { weight = shard(inp) },
      after = { "bias" },
      inputs = { { o.input or shard(channels), shard(channels) } },
      outputs = { { partial, o.output or replicate } },
      kinds = kinds,
    }
  end)
end

-- A module that computes each channel, or each group of channels, by itself, on shards of the channels of its input and
-- its output: a convolution with groups (depthwise), a group norm, a batch norm (in training too). tp divides the
-- number of groups.
---@param o? channelwise_keys
---@return style
function styles.channelwise(o)
  o = takes("channelwise", o)
  local statistics <const> = { ["*"] = shard(0), running_mean = shard(0), running_var = shard(0) }
  local function on_channels(channels, params, kinds)
    return style {
      name = "channelwise",
      params = params,
      inputs = { { o.input or shard(channels), shard(channels) } },
      outputs = { { shard(channels), o.output or shard(channels) } },
      kinds = kinds,
    }
  end
  return of_channels(function(channels, _, _, kinds)
    for positions = 1, kinds and 3 or 0 do
      kinds["BatchNorm" .. positions .. "d"] = on_channels(1, statistics)
    end
    return on_channels(channels, { weight = shard(0), bias = shard(0) }, kinds)
  end)
end

return styles
