-- A first plan for GPT2LMHeadModel, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare numbers before you rely on it.
-- No sequence parallelism: the use of transformer.wpe is unknown with the sequence
local transformer <const> = require "transformer"
local n_heads <const> = config.n_head

-- Linear layers whose weight is stored as [in, out]: output features are sharded.
local function turned_colwise(layout)
  return style {
    name = "turned_colwise",
    params = { weight = layout(1), bias = layout(0) },
    inputs = { { replicate, shared } },
    outputs = { { layout(-1), layout(-1) } },
  }
end

-- And input features in shards.
local turned_rowwise <const> = style {
  name = "turned_rowwise",
  params = { weight = shard(0) },
  after = { "bias" },
  inputs = { { shard(-1), shard(-1) } },
  outputs = { { partial, replicate } },
}

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids of rows that another rank has count as zero
  at("transformer.wte", vocab_rowwise {}),
  -- replicated: not recognized
  at("transformer.wpe", replicated()),
  -- sure: norms over all 64 features of the hidden states
  at("transformer.h.*.ln_{1,2}", replicated()),
  -- guess: 8 heads of 8 features; assumed order: all queries, all keys, all values
  transformer.heads_fit("transformer.h.*.attn", n_heads),
  at("transformer.h.*.attn.c_attn",
     turned_colwise(function(d) return packed(d, { 64, 64, 64 }, { heads = { n_heads, n_heads, n_heads } }) end)),
  at("transformer.h.*.attn.c_proj", turned_rowwise),
  -- guess: 64 features to 256 and back; found by shapes alone
  at("transformer.h.*.mlp.c_fc", turned_colwise(shard)),
  at("transformer.h.*.mlp.c_proj", turned_rowwise),
  -- sure: the norm after the last layer
  at("transformer.ln_f", replicated()),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "transformer.h.*" },
}
