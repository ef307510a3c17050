-- The shipped plan, its layers as units of fsdp and their mlp made again in the backward.
return plan {
  extends "llama",
  fsdp { wrap = "model.layers.*" },
  recompute { "model.layers.*.mlp" },
}
