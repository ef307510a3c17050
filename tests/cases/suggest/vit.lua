-- A first plan for vit, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by channels": the output channels of a convolution are sharded, and its output gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local n_heads <const> = config.num_heads

return plan {
  api = 1,
  -- replicated: not recognized
  at("{cls_token,pos_embed}", replicate),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("blocks", { residual = residual }),
  -- sure: norms over all 64 features of the hidden states
  at("blocks.*.{norm1,norm2}", norm_on(residual)),
  -- guess: 8 heads of 8 features; assumed order: all queries, all keys, all values
  transformer.heads_fit("blocks.*.attn", n_heads),
  at("blocks.*.attn.qkv",
     transformer.fused_colwise { input = residual, sizes = { 64, 64, 64 }, heads = { n_heads, n_heads, n_heads } }),
  at("blocks.*.attn.proj", rowwise { output = residual }),
  -- sure: 64 features to 256 and back
  at("blocks.*.mlp.fc1", colwise { input = residual }),
  at("blocks.*.mlp.fc2", rowwise { output = residual }),
  -- sure: the norm after the last layer
  at("norm", replicated()),
  -- sure: the head of a classifier with 10 classes
  at("head", colwise { output = replicate }),
  -- by channels: a convolution with one group
  at("patch_embed.proj", transformer.channels(2)),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "blocks.*" },
}
