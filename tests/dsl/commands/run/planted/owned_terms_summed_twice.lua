-- One expert that a rank owns sums its terms over the ranks itself. The block then sums the rows of all its experts, and
-- those of this one are counted once for each rank.
return plan {
  extends "mixtral",
  at("model.layers.0.block_sparse_moe.experts.0.w2", style {
    name = "summed",
    params = { weight = shard(1, { owner = 0 }) },
    inputs = { { shard(-1, { owner = 0 }), shard(-1, { owner = 0 }) } },
    outputs = { { partial, replicate } },
  }),
}
