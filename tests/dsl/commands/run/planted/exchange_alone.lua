-- Experts over the ranks of ep, and no section that reduces the gradients of the rest.
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local stream <const> = transformer.stream { sequence_parallel = false, loss_parallel = false, stable = false }
return plan {
  experts.block("model.layers.*.block_sparse_moe", stream, {
    size = config.intermediate_size, up = "{w1,w3}", down = "w2", count = config.num_local_experts, parallel = "exchange",
  }),
  default(replicated()),
}
