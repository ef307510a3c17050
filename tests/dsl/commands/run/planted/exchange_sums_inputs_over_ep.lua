-- The rows that experts receive, summed over ep, whose ranks have other rows.
return plan { extends "mixtral", ddp {},
  at("model.layers.1.block_sparse_moe.experts.{0..1}.w1", style { name = "up",
    params = { weight = on { tp = shard(0), ep = shard(0, { owner = 0 }) } },
    inputs = { { on{tp=shared, ep=partial}, on{tp=shared, ep=shared} } },
    outputs = { { shard(-1), shard(-1) } } }) }
