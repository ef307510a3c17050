-- q_proj is sharded by its input features over tp; its terms are summed before attention, but not if there is a ring.
local cp <const> = mesh.cp > 1
local function with(tp) return on { cp = cp and shard(1, { zigzag = true }) or nil, tp = tp } end
local full <const>, terms <const> = with(replicate), with(partial)
local q <const> = style { name = "q", params = { weight = shard(1) },
  inputs = { { full, with(shard(-1)) } },
  outputs = { { terms, cp and terms or full } } }
local kv <const> = style { name = "kv", params = { weight = replicate },
  inputs = { { full, full } },
  outputs = { { full, full } } }
local mixed <const> = cp and terms or full
local o <const> = style { name = "o", params = { weight = cp and shared or replicate },
  ring = cp and { heads = 8, kv_heads = 4 } or nil, inputs = { { mixed, mixed } },
  outputs = { { mixed, full } } }
return plan {
  extends "llama",
  at("model.layers.1.self_attn.q_proj", q),
  at("model.layers.1.self_attn.{k,v}_proj", kv),
  at("model.layers.1.self_attn.o_proj", o),
}
