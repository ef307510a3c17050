-- A first plan for ResNet, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare numbers before you rely on it.

return plan {
  api = 1,
  -- replicated: 4 modules without a rule, the first one layer1.*.conv1
  default(replicated()),
}
