-- One expert is owned and leaves terms of a sum; the others, on all ranks, sum theirs themselves. The block then sums
-- the rows of all its experts.
return plan {
  extends "mixtral",
  at("model.layers.1.block_sparse_moe.experts.0.{w1,w3}", style {
    name = "up",
    params = { weight = shard(0, { owner = 0 }) },
    inputs = { { shared, shared } },
    outputs = { { shard(-1, { owner = 0 }), shard(-1, { owner = 0 }) } },
  }),
  at("model.layers.1.block_sparse_moe.experts.0.w2", style {
    name = "down",
    params = { weight = shard(1, { owner = 0 }) },
    inputs = { { shard(-1, { owner = 0 }), shard(-1, { owner = 0 }) } },
    outputs = { { partial, partial } },
  }),
  at("model.layers.1.block_sparse_moe.experts.{1..3}.w2", style {
    name = "summed",
    params = { weight = shard(1) },
    inputs = { { shard(-1), shard(-1) } },
    outputs = { { partial, replicate } },
  }),
}
