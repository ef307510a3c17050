// A net of units that are large beside its activations, and the settings under which what they take is counted: by
// tests/engine/runtime/fsdp/memory_test.cc with real peers, by tests/engine/analysis/footprint/units_test.cc on the
// meta device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "engine/plan/plan/plan.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"

namespace moonshard::test {

struct WideLayerImpl : torch::nn::Module {
  WideLayerImpl() {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(96, 400)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(400, 96)));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::tanh(up(x))); }
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
};
MOONSHARD_MODULE(WideLayer);

struct WideNetImpl : torch::nn::Module {
  WideNetImpl() {
    for (int i = 0; i < 6; ++i) layers.emplace_back(register_module("layer_" + std::to_string(i), WideLayer()));
    head = register_module("head", nn::Linear(torch::nn::LinearOptions(96, 96)));
  }
  at::Tensor forward(at::Tensor x) {
    for (WideLayer& layer : layers) x = layer(x);
    return head(x);
  }
  std::vector<WideLayer> layers;
  nn::Linear head = nullptr;
};
MOONSHARD_MODULE(WideNet);

// What of fsdp changes how much a unit takes.
struct UnitSetup {
  std::string mesh;
  DataParallel::Reshard reshard;
  int64_t ahead = 0;
  int64_t ranks = 0;
  bool casts = false;
};

inline std::vector<UnitSetup> UnitSetups() {
  using R = DataParallel::Reshard;
  return {
      {"dp=2", R::kAlways, 0},  {"dp=2", R::kAlways, 1},      {"dp=2", R::kAlways, 2},
      {"dp=4", R::kAlways, 1},  {"dp=2", R::kAllButLast, 1},  {"dp=2", R::kNever, 0},
      {"dp=4", R::kSome, 0, 2}, {"dp=3", R::kAllButLast, 1},  {"dp=2", R::kAlways, 1, 0, true},
      {"cp=2", R::kAlways, 1},  {"dp=2,cp=2", R::kAlways, 1}, {"dp=3,cp=2", R::kAllButLast, 1},
  };
}

inline std::string ToText(const UnitSetup& setup) {
  return setup.mesh + " reshard " + std::to_string(static_cast<int>(setup.reshard)) + " ahead " +
         std::to_string(setup.ahead) + (setup.casts ? " used in float32" : "");
}

inline Plan PlanOf(const UnitSetup& setup) {
  Plan plan;
  plan.fallback.emplace().name = "whole";
  if (setup.mesh.find("cp") != std::string::npos) {
    // Each rank of cp is called with tokens of its own.
    Placement sequence;
    sequence[MeshAxis::kCp] = Layout::Shard(1);
    Rule& rule = plan.rules.emplace_back();
    rule.pattern = "layer_0";
    rule.style.name = "own_tokens";
    rule.style.inputs = {Redistribution{sequence, sequence}};
  }
  DataParallel& section = plan.data_parallel.emplace();
  section.wrap = {{"layer_*"}};
  section.reshard = setup.reshard;
  section.reshard_ranks = setup.ranks;
  section.prefetch_forward = section.prefetch_backward = setup.ahead;
  if (setup.casts) {
    plan.precision.emplace().parameters = "float32";
    plan.precision->reduce = "float64";
  }
  return plan;
}

}  // namespace moonshard::test
