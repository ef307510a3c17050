// What units of fsdp take at the busiest moment of a step: predicted on the meta device, counted by an allocator, and
// told by explain. In the settings of tests/engine/runtime/fsdp/memory_test.cc, which counts with real peers.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "engine/analysis/footprint/step_recorder.h"
#include "engine/analysis/meta/meta_scope.h"
#include "engine/plan/compile/unit_memory.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "tests/engine/runtime/fsdp/wide_net.h"
#include "tests/support/counting_allocator.h"

namespace moonshard::test {
namespace {

ParallelModel<WideNet> MakeUnitsModel(const UnitSetup& setup, c10::Device device, ApplyOptions options) {
  if (setup.casts) options.deferred_type = at::kDouble;
  const nn::DeferInit defer;
  const WideNet net;
  return Parallelize(net, PlanOf(setup), DeviceMesh::Recording(MeshShape::Parse(setup.mesh).ValueOrThrow(), 0, device),
                     options);
}

void Step(ParallelModel<WideNet>& model, c10::Device device) {
  model.forward(torch::ones({1, 1, 96}, device)).sum().backward();
}

TEST_CASE("units take what the step on the meta device does") {
  static CountingAllocator allocator;
  for (const UnitSetup& setup : UnitSetups()) {
    DYNAMIC_SECTION(ToText(setup)) {
      int64_t counted = 0;
      int64_t told = 0;
      {
        auto model = MakeUnitsModel(setup, at::kCPU, {});
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
      auto model = MakeUnitsModel(setup, at::kMeta, {});
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
