-- A first plan for a model of unknown class, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": it could be otherwise, so compare numbers before you rely on it.

return plan {
  api = 1,
  -- whole: 1 module that nobody told about, the first one the model itself
  default(replicated()),
}
