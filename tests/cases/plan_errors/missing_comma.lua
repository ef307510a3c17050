return plan {
  api = 1,
  at("model.norm", norm_on(replicate))
  at("lm_head", colwise {}),
}
