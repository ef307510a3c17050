-- A first plan for ResNet, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.

return plan {
  api = 1,
  -- replicated: 4 modules without a rule; the first is layer1.*.conv1
  default(replicated()),
}
