-- A first plan for a model of unknown class, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare numbers before you rely on it.

return plan {
  api = 1,
  -- replicated: 1 module without a rule, the first one the model itself
  default(replicated()),
}
