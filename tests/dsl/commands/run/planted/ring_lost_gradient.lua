-- Attention of all heads on both ranks of tp, o_proj sharded by its output features: q, k and v must be shared on tp.
-- On a ring k and v are not: their gradients are terms that nothing sums.
local cp <const> = mesh.cp > 1
local function with(tp) return on { cp = cp and shard(1, { zigzag = true }) or nil, tp = tp } end
local full <const>, shr <const> = with(replicate), with(shared)
local q <const> = style { name = "q", params = { weight = shared },
  inputs = { { full, shr } },
  outputs = { { shr, shr } } }
local kv <const> = cp and style { name = "kv", params = { weight = replicate },
  inputs = { { full, full } },
  outputs = { { full, full } } } or q
local o <const> = style { name = "o", params = { weight = shard(0) },
  ring = cp and { heads = 8, kv_heads = 4 } or nil, inputs = { { shr, shr } },
  outputs = { { with(shard(-1)), full } } }
return plan {
  extends "llama",
  at("model.layers.1.self_attn.q_proj", q),
  at("model.layers.1.self_attn.{k,v}_proj", kv),
  at("model.layers.1.self_attn.o_proj", o),
}
