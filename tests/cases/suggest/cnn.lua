-- A first plan for ResNet, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.

return plan {
  api = 1,
  -- replicated: not recognized
  at("{bn1,conv1}", replicated()),
  at("fc", colwise { output = replicate }),
  -- replicated: 1 module without a rule; the first is layer1.*.conv1
  default(replicated()),
}
