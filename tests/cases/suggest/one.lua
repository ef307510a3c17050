-- A first plan for a model of unknown class, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- No sequence parallelism: no list of layers is known to be that of a decoder of tokens

return plan {
  api = 1,
  -- replicated: 1 module without a rule; the first is the model itself
  default(replicated()),
}
