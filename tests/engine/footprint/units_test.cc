// What units of fsdp take at the busiest moment of a step: predicted on the meta device, counted by an allocator, and told
// by explain. In the settings of tests/engine/fsdp/memory_test.cc, which counts with real peers.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "engine/apply/initialize.h"
#include "engine/apply/parallelize.h"
#include "engine/compile/unit_memory.h"
#include "engine/footprint/step_recorder.h"
#include "engine/meta/meta_scope.h"
#include "engine/nn/defer_init.h"
#include "engine/nn/hook.h"
#include "engine/nn/linear.h"
#include "tests/support/counting_allocator.h"

namespace moonshard::test {
namespace {

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

struct Setup {
  std::string mesh;
  DataParallel::Reshard reshard;
  int64_t ahead = 0;
  int64_t ranks = 0;
  bool casts = false;
};

ParallelModel<WideNet> Make(const Setup& setup, c10::Device device, ApplyOptions options) {
  Plan plan;
  plan.fallback.emplace().name = "whole";
  DataParallel& section = plan.data_parallel.emplace();
  section.wrap = {{"layer_*"}};
  section.reshard = setup.reshard;
  section.reshard_ranks = setup.ranks;
  section.prefetch_forward = section.prefetch_backward = setup.ahead;
  if (setup.casts) {
    plan.precision.emplace().parameters = "float32";
    plan.precision->reduce = "float64";
    options.deferred_type = at::kDouble;
  }
  const nn::DeferInit defer;
  const WideNet net;
  return Parallelize(net, plan, DeviceMesh::Recording(MeshShape::Parse(setup.mesh).ValueOrThrow(), 0, device), options);
}

void Step(ParallelModel<WideNet>& model, c10::Device device) {
  model.forward(torch::ones({1, 96}, device)).sum().backward();
}

TEST_CASE("units take what the step on the meta device does") {
  static CountingAllocator allocator;
  using R = DataParallel::Reshard;
  const Setup setups[] = {
      {"dp=2", R::kAlways, 0},  {"dp=2", R::kAlways, 1},     {"dp=2", R::kAlways, 2},
      {"dp=4", R::kAlways, 1},  {"dp=2", R::kAllButLast, 1}, {"dp=2", R::kNever, 0},
      {"dp=4", R::kSome, 0, 2}, {"dp=3", R::kAllButLast, 1}, {"dp=2", R::kAlways, 1, 0, true},
  };
  for (const Setup& setup : setups) {
    DYNAMIC_SECTION(setup.mesh << " reshard " << static_cast<int>(setup.reshard) << " ahead " << setup.ahead
                               << (setup.casts ? " used in float32" : "")) {
      int64_t counted = 0;
      int64_t told = 0;
      {
        auto model = Make(setup, at::kCPU, {});
        Initialize(model.applied(), 1);
        Step(model, at::kCPU);
        const int64_t before = allocator.live();
        allocator.ResetPeak();
        Step(model, at::kCPU);
        counted = allocator.peak() - before;
        told = MemoryOfUnits(model.applied().plan(), 0).peak;
      }
      const MetaScope meta;
      const auto recorder = std::make_shared<StepRecorder>();
      const StepRecorder::Scope scope(recorder);
      auto model = Make(setup, at::kMeta, {.around = recorder->around()});
      Step(model, at::kMeta);
      recorder->Begin(model.applied());
      Step(model, at::kMeta);
      const Footprint footprint = recorder->End(model.applied());
      CHECK(static_cast<double>(footprint.step_peak) == Approx(static_cast<double>(counted)).epsilon(0.01));
      CHECK(static_cast<double>(footprint.step_peak) == Approx(static_cast<double>(told)).epsilon(0.15));
      int64_t stored = 0;
      for (const at::Tensor& p : model.parameters()) stored += static_cast<int64_t>(p.nbytes());
      CHECK(footprint.bytes[static_cast<size_t>(FootprintKind::kParameter)] >= stored);
      CHECK(footprint.bytes[static_cast<size_t>(FootprintKind::kOptimizer)] == 2 * stored);
      CHECK(footprint.bytes[static_cast<size_t>(FootprintKind::kGathered)] > 0);
    }
  }
}

}  // namespace
}  // namespace moonshard::test
