-- Two rules claim the gate projections, one rule is misspelt, and the norms are forgotten.
return plan {
  api = 1,
  at("model.embed_tokens", vocab_rowwise {}),
  at("model.layers.*.self_attn.{q,k,v}_proj", colwise {}),
  at("model.layers.*.self_attn.o_proj", rowwise {}),
  at("model.layers.*.mlp.{gate,up}_proj", colwise {}),
  at("model.layers.0.mlp.gate_proj", replicated {}),
  at("model.layers.*.mlp.dwon_proj", rowwise {}),
  at("lm_head", colwise { output = replicate }),
}
