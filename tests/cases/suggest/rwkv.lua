-- A first plan for RwkvForCausalLM, from names, shapes and config.json (moonshard suggest).
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
  at("rwkv.embeddings", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("rwkv.blocks", { residual = residual }),
  at("rwkv.blocks.*.attention", gathered),
  at("rwkv.blocks.*.feed_forward", gathered),
  -- sure: norms over all 64 features of the hidden states
  at("rwkv.blocks.0.{ln1,ln2,pre_ln}", norm_on(residual)),
  -- replicated or by rows: feed_forward is not sharded by features: how feed_forward uses the features is unknown
  at("rwkv.blocks.*.feed_forward.{key,value}", colwise { output = replicate }),
  at("rwkv.blocks.*.feed_forward.receptance", replicated()),
  -- replicated or by rows: not recognized by name or shape
  at("rwkv.blocks.*.attention.{key,output,value}", colwise { output = replicate }),
  at("rwkv.blocks.*.attention.receptance", replicated()),
  -- sure: norms over all 64 features of the hidden states
  at("rwkv.blocks.1.{ln1,ln2}", norm_on(residual)),
  -- sure: the norm after the last layer
  at("rwkv.ln_out", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "rwkv.blocks.*" },
}
