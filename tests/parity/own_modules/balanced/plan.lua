local opt <const> = options { sharded_logits = false }

return plan {
  api = 1,
  default(replicated()),
  at("up", colwise {}),
  at("down", rowwise {}),
  at("embed", vocab_rowwise {}),
  ddp {},
  at("lm_head", colwise { output = opt.sharded_logits and shard(-1) or replicate }),
}
