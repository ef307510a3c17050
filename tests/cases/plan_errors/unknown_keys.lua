return plan {
  apy = 1,
  at("a", style { nme = "mine", inputs = { { replicate, shared, 3 } }, param = {} }),
  at("b", rowwise { ouput = replicate }),
  at("c", colwise { replicate }),
  at("d", colwise {}, { optinal = true }),
  at("e", shard(0, { head = 3 })),
  { note = "lists have no names", at("f", replicated()) },
}
