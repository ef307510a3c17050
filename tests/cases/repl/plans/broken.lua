return plan {
  at("lm_head", colwize {}),
}
