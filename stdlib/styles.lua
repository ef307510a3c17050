-- styles.lua: the named styles. Each is a function of a table that answers a style: what happens to a module's
-- parameters, and which moves its inputs and outputs make. A style of your own is a function like these.

---@meta
---@class layout  how a tensor lies on the ranks of a mesh axis: replicate, shared, shard(d), partial, packed(d, sizes)
---@class style   what a rule does to the modules it claims

---@class styles
local styles = {}

---@class linear_options
---@field input?  layout   what the input arrives as
---@field output? layout   what the output leaves as
---@field heads?  integer  the sharded features are this many heads: cut between them, replicated where they are few

-- Output features in pieces: every rank computes its own from the whole input.
---@param o? linear_options  input: replicate; output: shard(-1)
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

-- Input features in pieces: every rank computes a term of the sum. The bias is added once, after the sum.
---@param o? linear_options  input: shard(-1); output: replicate
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
  }
end

-- An embedding whose rows are in pieces: ids whose row another rank owns count as zero.
---@param o? { output?: layout }  output: replicate
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

-- A module that treats every token alike (a norm, dropout), on pieces of the sequence. Its parameters are whole, and
-- each rank's gradient of them is a term of the sum.
---@param o? { dim?: integer, output?: layout }  dim: 1, the sequence of [batch, sequence, features]; output: shard(dim);
--- replicate or shared gathers what leaves
---@return style
function styles.sequence_parallel(o)
  o = takes("sequence_parallel", o)
  local pieces <const> = shard(o.dim or 1)
  return style {
    name = "sequence_parallel",
    params = { weight = shared, bias = shared },
    inputs = { { pieces, pieces } },
    outputs = { { pieces, o.output or pieces } },
  }
end

-- A rotary embedding on the residual stream: it takes the hidden states, for their dtype alone, and the positions, whole
-- on every rank, and gives cos and sin, whole.
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

-- A module that works the same on every rank.
---@param o? { input?: layout, output?: layout }  without them, the inputs and outputs are left alone
---@return style
function styles.replicated(o)
  o = takes("replicated", o)
  return style {
    name = "replicated",
    inputs = o.input and { { o.input, replicate } },
    outputs = o.output and { { replicate, o.output } },
  }
end

-- A norm on the residual stream, which has this layout before and after it.
---@param residual layout  replicate, or shard(1) under sequence parallelism
---@return style
function styles.norm_on(residual)
  residual = takes("norm_on", { residual = residual }, { residual = "needed layout" }).residual
  local used <const> = residual == replicate and replicate or shared
  return style {
    name = "norm",
    params = { weight = used, bias = used },
    inputs = { { residual, residual } },
    outputs = { { residual, residual } },
  }
end

-- Moves of a module's inputs, by position; false leaves one alone.
---@param moves (layout[]|false)[]  { { arrives as, is used as }, ... }
---@return style
function styles.prepare_input(moves)
  return style { name = "prepare_input", inputs = moves }
end

-- Moves of a module's outputs, by position; false leaves one alone.
---@param moves (layout[]|false)[]  { { the forward makes, leaves as }, ... }
---@return style
function styles.prepare_output(moves)
  return style { name = "prepare_output", outputs = moves }
end

return styles
