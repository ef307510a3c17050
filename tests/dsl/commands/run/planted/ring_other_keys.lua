-- A rank of tp gets other key heads than its queries use: heads 0 and 2, and 1 and 3.
local function with(tp) return on { cp = shard(1, { zigzag = true }), tp = tp } end
local kv <const> = style { name = "kv", params = { weight = packed(0, { 16, 16 }) },
  inputs = { { with(replicate), with(shared) } },
  outputs = { { with(packed(-1, { 16, 16 })), with(packed(-1, { 16, 16 })) } } }
return plan { extends "llama", mesh.cp > 1 and at("model.layers.1.self_attn.{k,v}_proj", kv) or {} }
