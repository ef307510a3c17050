return plan {
  fsdp { wrap = "model.layers.*" },
  ddp {},
}
