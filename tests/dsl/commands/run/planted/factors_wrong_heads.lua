-- Keys that are exchanged over the inner factor of cp in parts: a rank gets other heads than those of its queries.
local wide <const> = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
local function sequence(on_tp) return on { tp = on_tp, cp = shard(1, { zigzag = true }) } end
local parted <const> = style {
  name = "parted",
  params = { weight = shard(0) },
  inputs = { { sequence(replicate), sequence(shared) } },
  outputs = { { sequence(shard(-1)), on { tp = shard(-1), cp = packed(-1, { wide // 2, wide // 2 }) } } },
}
return plan { extends "llama", mesh.cp > 1 and at("model.layers.1.self_attn.k_proj", parted) or {} }
