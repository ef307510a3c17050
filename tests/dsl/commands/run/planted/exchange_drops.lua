-- Experts of the second layer that take half of the mean number of tokens: the others are not sent.
return plan {
  extends "mixtral",
  at("model.layers.1.block_sparse_moe.experts", style {
    name = "drops",
    outputs = { { partial, partial } },
    exchange = { tokens = 1, ids = 2, weights = 3, per_token = config.num_experts_per_tok, features = config.hidden_size,
                 listed = config.num_local_experts, capacity = 0.5 },
  }),
}
