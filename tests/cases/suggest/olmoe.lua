-- A first plan for OlmoeForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local opt <const> = options { sequence_parallel = false, loss_parallel = false }
local residual <const> = opt.sequence_parallel and shard(1) or replicate  -- the hidden states between blocks
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local stream <const> = { residual = residual, logits = logits, stable = false }

-- A block that gets all tokens, since its modules are not understood.
local gathered <const> = style {
  name = "gathered",
  inputs = { { residual, replicate } },
  outputs = { { replicate, residual } },
}

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- Within these layers, the hidden states are sharded along the sequence.
  transformer.stack("model.layers", { residual = residual }),
  at("model.layers.*.self_attn", gathered),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(residual)),
  -- replicated or by rows: self_attn is not sharded between heads: k_norm is a norm over the features of all heads,
  -- and no rank would have all heads
  at("model.layers.*.self_attn.{k,o,q,v}_proj", colwise { output = replicate }),
  at("model.layers.*.self_attn.{k,q}_norm", replicated()),
  -- sure: 4 experts of 48 features, each expert sharded
  experts.block("model.layers.*.mlp", stream, {  }),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
