--- mesh: tp=3
return plan {
  divides(mesh.tp, config.num_attention_heads),
  divides(mesh.tp, 0),
}
