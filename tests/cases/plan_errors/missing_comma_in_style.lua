return plan {
  at("lm_head", colwise { input = replicate output = replicate }),
}
