-- A first plan for GPT2LMHeadModel, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: the use of transformer.wpe is unknown with the sequence
local transformer <const> = require "transformer"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
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

-- Linear layers whose weight is stored as [in, out]: input features are sharded.
local turned_rowwise <const> = style {
  name = "turned_rowwise",
  params = { weight = shard(0) },
  after = { "bias" },
  inputs = { { shard(-1), shard(-1) } },
  outputs = { { partial, replicate } },
}

return plan {
  api = 1,
  -- sure: the embedding: its 48 rows are the vocabulary; ids whose row is on another rank give zeros
  at("transformer.wte", vocab_rowwise {}),
  -- replicated: not recognized
  at("transformer.wpe", replicated()),
  -- sure: norms over all 32 features of the hidden states
  at("transformer.h.*.ln_{1,2}", replicated()),
  -- guess: 4 heads of 8 features; assumed order: all queries, all keys, all values
  transformer.heads_fit("transformer.h.*.attn", n_heads),
  at("transformer.h.*.attn.c_attn",
     turned_colwise(function(d) return packed(d, { 32, 32, 32 }, { heads = { n_heads, n_heads, n_heads } }) end)),
  at("transformer.h.*.attn.c_proj", turned_rowwise),
  -- sure: 32 features to 48 and back
  at("transformer.h.*.mlp.c_fc", turned_colwise(shard)),
  at("transformer.h.*.mlp.c_proj", turned_rowwise),
  -- sure: the norm after the last layer
  at("transformer.ln_f", replicated()),
  -- sure: the head: logits over the 48 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "transformer.h.*" },
}
