// What units take at the busiest moment of a step, counted by the allocator, against what explain says before.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/unit_memory.h"
#include "engine/runtime/apply/parallelize.h"
#include "tests/engine/runtime/fsdp/wide_net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

using namespace std::chrono_literals;

// Of the tensors that one thread made.
struct Meter {
  std::atomic<int64_t> live = 0;
  std::atomic<int64_t> peak = 0;
  void Add(int64_t bytes) {
    const int64_t now = live += bytes;
    if (now > peak) peak = now;
  }
};

std::shared_ptr<Meter>& MeterOfThread() {
  thread_local auto meter = std::make_shared<Meter>();
  return meter;
}

// A block's owner lies in front of it.
class MeteredAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t rounded = (bytes + 2 * kAhead - 1) / kAhead * kAhead;
    auto* block = static_cast<char*>(std::aligned_alloc(kAhead, rounded));
    new (block) Owner{MeterOfThread(), static_cast<int64_t>(bytes)};
    MeterOfThread()->Add(static_cast<int64_t>(bytes));
    void* const data = block + kAhead;
    return {data, data, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr size_t kAhead = 64;
  struct Owner {
    std::shared_ptr<Meter> meter;
    int64_t bytes;
  };
  static void Free(void* data) {
    char* const block = static_cast<char*>(data) - kAhead;
    auto* const owner = reinterpret_cast<Owner*>(block);
    owner->meter->Add(-owner->bytes);
    owner->~Owner();
    std::free(block);
  }
};

TEST_CASE("units take what explain says, within a tenth") {
  static MeteredAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
  for (const UnitSetup& setup : UnitSetups()) {
    DYNAMIC_SECTION(ToText(setup)) {
      std::atomic<int64_t> predicted = 0;
      std::atomic<int64_t> measured = 0;
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        WideNet net;
        // (Products in bfloat16 take memory of their own on a CPU.)
        if (setup.casts) net->to(torch::kFloat64);
        auto model = Parallelize(net, PlanOf(setup), mesh, {.initial = InitialValues::kUnchecked});
        const at::Tensor x = torch::ones({1, 1, 96});
        const auto step = [&] { model.forward(x).sum().backward(); };
        step();
        step();
        Meter& meter = *MeterOfThread();
        int64_t stored = 0;
        for (const at::Tensor& p : model.parameters()) {
          stored += static_cast<int64_t>(p.storage().nbytes()) + static_cast<int64_t>(p.grad().nbytes());
        }
        const PlanTotals totals = TotalsOf(model.applied().plan(), mesh.rank());
        Expect(stored == totals.bytes_per_rank + totals.gradient_bytes, "parameters and gradients as predicted");
        const double share =
            static_cast<double>(totals.params * (setup.casts ? 8 : 4)) / static_cast<double>(mesh.shape().world_size());
        Expect(static_cast<double>(totals.bytes_per_rank) < 1.03 * share, "an equal share of the parameters");
        // Gloo's threads free their buffers a moment after the step, which raises what is live between steps and the
        // next step's peak alike: the smallest of several of each is the step's own. Between steps the gradients'
        // blocks hold a little more than what is stored (flags, padding).
        int64_t least_between = std::numeric_limits<int64_t>::max();
        int64_t least_peak = std::numeric_limits<int64_t>::max();
        const auto waits_for = [](std::chrono::milliseconds limit, const auto& condition) {
          const auto end = std::chrono::steady_clock::now() + limit;
          while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(2ms);
          return condition();
        };
        for (int round = 0; round < 16; ++round) {
          Expect(waits_for(20s, [&] { return meter.live < stored + stored / 20; }), "nothing else stays between steps");
          waits_for(40ms, [&] { return meter.live < least_between; });
          least_between = std::min(least_between, meter.live.load());
          meter.peak = meter.live.load();
          step();
          least_peak = std::min(least_peak, meter.peak.load());
        }
        const int64_t least = least_peak - least_between;
        if (mesh.rank() == 0) {
          measured = least;
          predicted = MemoryOfUnits(model.applied().plan(), 0, /*gloo=*/true).peak;
        }
      });
      INFO("predicted " << predicted << ", measured " << measured);
      CHECK(static_cast<double>(measured) < 1.1 * static_cast<double>(predicted));
      CHECK(static_cast<double>(measured) > 0.9 * static_cast<double>(predicted));
    }
  }
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/1);
}

}  // namespace
}  // namespace moonshard::test
