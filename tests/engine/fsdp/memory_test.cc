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

#include "engine/apply/parallelize.h"
#include "engine/compile/cost.h"
#include "engine/compile/unit_memory.h"
#include "engine/nn/hook.h"
#include "engine/nn/linear.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

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

TEST_CASE("units take what explain says, within a tenth") {
  static MeteredAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
  using R = DataParallel::Reshard;
  const Setup setups[] = {
      {"dp=2", R::kAlways, 0},  {"dp=2", R::kAlways, 1},     {"dp=2", R::kAlways, 2},
      {"dp=4", R::kAlways, 1},  {"dp=2", R::kAllButLast, 1}, {"dp=2", R::kNever, 0},
      {"dp=4", R::kSome, 0, 2}, {"dp=3", R::kAllButLast, 1}, {"dp=2", R::kAlways, 1, 0, true},
  };
  for (const Setup& setup : setups) {
    DYNAMIC_SECTION(setup.mesh << " reshard " << static_cast<int>(setup.reshard) << " ahead " << setup.ahead
                               << (setup.casts ? " used in float32" : "")) {
      std::atomic<int64_t> told = 0;
      std::atomic<int64_t> seen = 0;
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
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
        }
        WideNet net;
        // (Products in bfloat16 take memory of their own on a CPU.)
        if (setup.casts) net->to(torch::kFloat64);
        auto model = Parallelize(net, plan, mesh);
        const at::Tensor x = torch::ones({1, 96});
        const auto step = [&] { model.forward(x).sum().backward(); };
        step();
        step();
        Meter& meter = *MeterOfThread();
        int64_t stored = 0;
        for (const at::Tensor& p : model.parameters()) {
          stored += static_cast<int64_t>(p.storage().nbytes()) + static_cast<int64_t>(p.grad().nbytes());
        }
        const PlanTotals totals = TotalsOf(model.applied().plan(), mesh.rank());
        Expect(stored == totals.bytes_per_rank + totals.gradient_bytes, "parameters and gradients as told");
        const double share =
            static_cast<double>(totals.params * (setup.casts ? 8 : 4)) / static_cast<double>(mesh.shape().world_size());
        Expect(static_cast<double>(totals.bytes_per_rank) < 1.03 * share, "an equal share of the parameters");
        // Gloo's threads let go of what they hold a moment later, so the smallest of several peaks is the step's own.
        // Beyond what is stored stays what the gradients' blocks hold besides (flags, padding).
        int64_t least = std::numeric_limits<int64_t>::max();
        for (int round = 0; round < 8; ++round) {
          const auto settled = [&] { return meter.live < stored + stored / 20; };
          for (int i = 0; i < 400 && !settled(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          Expect(settled(), "nothing else stays between steps");
          const int64_t before = meter.live;
          meter.peak = before;
          step();
          least = std::min(least, meter.peak - before);
        }
        if (mesh.rank() == 0) {
          seen = least;
          told = MemoryOfUnits(model.applied().plan(), 0, /*gloo=*/true).peak;
        }
      });
      INFO("told " << told << ", seen " << seen);
      CHECK(static_cast<double>(seen) < 1.1 * static_cast<double>(told));
      CHECK(static_cast<double>(seen) > 0.9 * static_cast<double>(told));
    }
  }
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/1);
}

}  // namespace
}  // namespace moonshard::test
