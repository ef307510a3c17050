-- A first plan for JetMoeForCausalLM, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- No sequence parallelism: model.layers: the use of the bias of self_attention in a layer is unknown
local experts <const> = require "experts"
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate
local stream <const> = { residual = replicate, logits = logits, stable = false }

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("model.embed_tokens", vocab_rowwise {}),
  -- sure: norms over all 64 features of the hidden states
  at("model.layers.*.{input,post_attention}_layernorm", replicated()),
  -- sure: 4 experts of 48 features, each expert sharded; order: gate, then up
  experts.block("model.layers.*.mlp",
     stream, { size = config.intermediate_size, gate = "router.layer", up = "input_linear", down = "output_linear" }),
  at("model.layers.*.mlp.bias", replicate),
  -- replicated or by rows: the experts are not sharded: the stdlib has no block for experts of this form
  at("model.layers.*.self_attention.kv_proj", colwise { output = replicate }),
  at("model.layers.*.self_attention.experts", replicated()),
  at("model.layers.*.self_attention.experts.{input,output}_linear", replicated()),
  at("model.layers.*.self_attention.experts.router.layer", replicated()),
  -- sure: the norm after the last layer
  at("model.norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("lm_head", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "model.layers.*" },
}
