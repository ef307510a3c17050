-- A first plan for StrangeModel, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: net.stage: the use of mix.a in a layer is unknown
local opt <const> = options { loss_parallel = false }
local logits <const> = opt.loss_parallel and shard(-1) or replicate

return plan {
  api = 1,
  -- sure: the embedding: its 96 rows are the vocabulary; ids whose row is on another rank give zeros
  at("net.tok", vocab_rowwise {}),
  -- sure: norms over all 64 features of the hidden states
  at("net.stage.*.pre_norm", replicated()),
  -- guess: 64 features to 200 and back; found by shapes alone
  at("net.stage.*.wide.x", colwise {}),
  at("net.stage.*.wide.z", rowwise {}),
  -- replicated: not recognized by name or shape
  at("net.stage.*.mix.{a,b,c,d}", replicated()),
  -- sure: the norm after the last layer
  at("net.last_norm", replicated()),
  -- sure: the head: logits over the 96 tokens of the vocabulary
  at("net.unembed", colwise { output = logits }),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "net.stage.*" },
}
