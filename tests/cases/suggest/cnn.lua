-- A first plan for ResNet, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": it could be otherwise, so compare numbers before you rely on it.

return plan {
  api = 1,
  -- whole: 4 modules that nobody told about, the first one layer1.*.conv1
  default(replicated()),
}
