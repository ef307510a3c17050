-- A first plan for GPT2LMHeadModel, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by columns": the features of a table are sharded, and its output gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local n_heads <const> = config.n_head

-- Linear layers whose weight is stored as [in, out]: output features are sharded.
local function turned_colwise(layout, input, output)
  return style {
    name = "turned_colwise",
    params = { weight = layout(1), bias = layout(0) },
    inputs = { { input, shared } },
    outputs = { { layout(-1), output or layout(-1) } },
  }
end

-- Linear layers whose weight is stored as [in, out]: input features are sharded.
local function turned_rowwise(output)
  return style {
    name = "turned_rowwise",
    params = { weight = shard(0) },
    after = { "bias" },
    inputs = { { shard(-1), shard(-1) } },
    outputs = { { partial, output } },
  }
end

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("transformer.wte", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("transformer.h", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("transformer.h.*.ln_{1,2}", norm_on(residual)),
  -- guess: 8 heads of 8 features; assumed order: all queries, all keys, all values
  transformer.heads_fit("transformer.h.*.attn", n_heads),
  at("transformer.h.*.attn.c_attn",
     turned_colwise(function(d) return packed(d, { 64, 64, 64 }, { heads = { n_heads, n_heads, n_heads } }) end, residual)),
  at("transformer.h.*.attn.c_proj", turned_rowwise(residual)),
  -- guess: 64 features to 256 and back; found by shapes alone
  at("transformer.h.*.mlp.c_fc", turned_colwise(shard, residual)),
  at("transformer.h.*.mlp.c_proj", turned_rowwise(residual)),
  -- sure: the norm after the last layer
  at("transformer.ln_f", replicated()),
  -- by columns: a table of positions or types
  at("transformer.wpe", transformer.table()),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "transformer.h.*" },
}
