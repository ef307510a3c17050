// A small model with running statistics, for tests of buffers: a projection, a BatchNorm over its features, another
// projection; float64, the same parameters in every build. On tp the BatchNorm has the features of its rank.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/plan/plan/plan.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/support/styles.h"

namespace moonshard::test {

MOONSHARD_MODULE_IMPL(HookedBatchNorm, torch::nn::BatchNorm1dImpl);

struct BatchNormNetImpl : torch::nn::Module {
  BatchNormNetImpl() {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(3, 8)));
    norm = register_module("norm", HookedBatchNorm(torch::nn::BatchNorm1dOptions(8)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(8, 4)));
  }
  at::Tensor forward(const at::Tensor& x) { return down(norm(up(x))); }
  nn::Linear up = nullptr;
  HookedBatchNorm norm = nullptr;
  nn::Linear down = nullptr;
};
MOONSHARD_MODULE(BatchNormNet);

inline BatchNormNet MakeBatchNormNet() {
  BatchNormNet net;
  net->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  int64_t seed = 1;
  for (at::Tensor& p : net->parameters()) {
    p.copy_(torch::sin(torch::arange(1, p.numel() + 1, torch::kFloat64) * static_cast<double>(seed)).view(p.sizes()));
    ++seed;
  }
  return net;
}

inline Plan BatchNormPlan(bool shards, DataParallel::Buffers rule = DataParallel::Buffers::kFirst) {
  Style norm;
  norm.name = "features";
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) norm.params[name] = Layout::Shard(0);
  norm.inputs = {Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
  norm.outputs = {Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
  Plan plan = PlanOfRules("batch_norm", {{"up", ColwiseStyle()}, {"norm", norm}, {"down", RowwiseStyle()}});
  plan.data_parallel.emplace().shards = shards;
  plan.data_parallel->buffers = rule;
  plan.data_parallel->source.file = "plan.lua";
  plan.data_parallel->source.line = 7;
  return plan;
}

// The rows of a data-parallel rank in a step; as many on each.
inline at::Tensor RowsOf(int64_t data_rank, int64_t step) {
  return torch::cos(torch::arange(15, torch::kFloat64) * static_cast<double>(3 * data_rank + step + 1)).view({5, 3}) +
         static_cast<double>(data_rank);
}

}  // namespace moonshard::test
