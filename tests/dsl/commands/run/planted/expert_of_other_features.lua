-- One of an expert's two projections is sharded in parts: each rank multiplies other features of the two.
local half <const> = config.intermediate_size // 2
local parted <const> = style {
  name = "parted",
  params = { weight = packed(0, { half, half }) },
  inputs = { { shared, shared } },
  outputs = { { packed(-1, { half, half }), packed(-1, { half, half }) } },
}
return plan { extends "mixtral", at("model.layers.1.block_sparse_moe.experts.1.w3", parted) }
