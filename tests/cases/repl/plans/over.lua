-- The shipped plan with the first mlp left whole.
return plan {
  extends "llama",
  at("model.layers.0.mlp.{gate,up,down}_proj", replicated {}),
}
