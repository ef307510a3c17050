-- A first plan for MambaForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
local transformer <const> = require "transformer"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate

-- A block that gets all tokens, since its modules are not understood.
local gathered <const> = style {
  name = "gathered",
  inputs = { { residual, replicate } },
  outputs = { { replicate, residual } },
}

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("backbone.embeddings", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("backbone.layers", { residual = residual }),
  at("backbone.layers.*.mixer", gathered),
  -- sure: norms over all 64 features of the hidden states
  at("backbone.layers.*.norm", norm_on(residual)),
  -- replicated or by rows: mixer is not sharded by features: how mixer uses the features is unknown
  at("backbone.layers.*.mixer.{in,out,x}_proj", colwise { output = replicate }),
  at("backbone.layers.*.mixer.{conv1d,dt_proj}", replicated()),
  -- sure: the norm after the last layer
  at("backbone.norm_f", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "backbone.layers.*" },
}
