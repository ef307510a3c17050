-- The rows of a rank's own experts, summed over the data-parallel ranks, which have other rows.
return plan { extends "mixtral", ddp {},
  at("model.layers.1.block_sparse_moe.experts.0.w2", style { name = "exchanged_down",
    params = { weight = on { tp = shard(1), ep = shard(1, { owner = 0 }) } },
    inputs = { { shard(-1), shard(-1) } },
    outputs = { { on{tp=partial, dp_shard=partial}, on{tp=partial, dp_shard=shared} } } }),
}
