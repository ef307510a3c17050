-- A first plan for MPTForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local n_heads <const> = config.n_heads

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("transformer.wte", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("transformer.blocks", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("transformer.blocks.*.norm_{1,2}", norm_on(residual)),
  -- guess: 8 heads of 8 features; assumed order: all queries, all keys, all values
  transformer.heads_fit("transformer.blocks.*.attn", n_heads),
  at("transformer.blocks.*.attn.Wqkv",
     transformer.fused_colwise { input = residual, sizes = { 64, 64, 64 }, heads = { n_heads, n_heads, n_heads } }),
  at("transformer.blocks.*.attn.out_proj", rowwise { output = residual }),
  -- sure: 64 features to 256 and back
  at("transformer.blocks.*.ffn.up_proj", colwise { input = residual }),
  at("transformer.blocks.*.ffn.down_proj", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("transformer.norm_f", replicated()),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "transformer.blocks.*" },
}
