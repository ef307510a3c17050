return plan {
  at("lm_head", colwse { input = replicate }),
  at("model.norm", norm_on(replicat)),
}
