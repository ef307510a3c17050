local helpers = {}
return plan {
  helpers.attention("model"),
}
