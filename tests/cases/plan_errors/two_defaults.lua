return plan {
  default(replicated()),
  default(replicated()),
}
