// AdamW over a sharded model: torch::optim::AdamW on this rank's shards. That is sufficient, because the update of an
// element needs only its own gradient and moments (Loshchilov and Hutter 2019, algorithm 2). Each rank keeps the
// moments of its shards.
// Stage before: apply (gradients are summed when backward returns). Beside it: learning_rate.h, finite.h.
#pragma once

#include <torch/optim/adamw.h>

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// AdamW in two groups: parameters of two dims or more with `options.weight_decay()`, the rest (biases, norms' scales)
// with none. The number of dims is that of the full tensor, and tied parameters are stepped once.
torch::optim::AdamW MakeAdamW(const AppliedPlan& model, const torch::optim::AdamWOptions& options);

// In every group of any optimizer.
void SetLearningRate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace moonshard
