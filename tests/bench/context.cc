// Forward and backward of the causal attention of one sequence over cp=2 on two thread ranks of one thread each: as a
// ring with an early and a late chunk on each rank (zigzag), and as a ring of plain chunks. Prints both times and their
// ratio, and of each ring the pairs of a query and a key that attend to each other: the most of a rank over the mean of
// the ranks, which is the ratio of the times to those of work that is shared evenly. Then the zigzag ring against one
// rank with one thread (scaled_dot_product_attention) while the other one waits.
//   bench_context [PAIRS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/layout/ring_steps.h"
#include "engine/runtime/redistribute/ring_attention.h"
#include "tests/bench/timing.h"
#include "tests/support/ranks.h"

namespace moonshard::bench {
namespace {

constexpr int64_t kHeads = 4;
constexpr int64_t kKeyHeads = 2;
constexpr int64_t kFeatures = 64;
constexpr double kScale = 0.125;

struct Sizes {
  int64_t length;
  at::ScalarType dtype;
  std::optional<int64_t> window;
};

// The most pairs of a query and a key of a rank, over the mean of the ranks.
double Imbalance(const RingSteps& steps, std::optional<int64_t> window) {
  int64_t most = 0;
  int64_t all = 0;
  for (int64_t rank = 0; rank < steps.ranks(); ++rank) {
    int64_t pairs = 0;
    for (const Interval& run : steps.TokensOf(rank)) {
      for (int64_t query = run.begin; query < run.begin + run.length; ++query) {
        pairs += std::min(query + 1, window.value_or(query + 1));
      }
    }
    most = std::max(most, pairs);
    all += pairs;
  }
  return static_cast<double>(most * steps.ranks()) / static_cast<double>(all);
}

at::Tensor OwnTokens(const at::Tensor& full, const RingSteps& steps, int64_t rank) {
  std::vector<at::Tensor> runs;
  for (const Interval& run : steps.TokensOf(rank)) runs.push_back(full.narrow(2, run.begin, run.length));
  return at::cat(runs, 2);
}

// A ring with the leaves of this rank.
struct Ring {
  Ring(const std::shared_ptr<AxisGroup>& group, const Sizes& sizes, bool zigzag, const std::vector<at::Tensor>& all,
       const at::Tensor& all_upstream)
      : steps(sizes.length, sizes.window, group->size(), zigzag),
        attend(group, "bench", zigzag),
        upstream(OwnTokens(all_upstream, steps, group->rank())) {
    for (const at::Tensor& tensor : all) own.push_back(OwnTokens(tensor, steps, group->rank()).requires_grad_());
  }
  void Run(const Sizes& sizes) {
    for (const at::Tensor& tensor : own) tensor.mutable_grad().reset();
    const at::Tensor out = attend(own[0], own[1], own[2], sizes.length, {kScale, sizes.window, {}});
    torch::autograd::backward({out}, {upstream});
  }

  RingSteps steps;
  RingAttention attend;
  at::Tensor upstream;
  std::vector<at::Tensor> own;
};

void Bench(const Sizes& sizes, int pairs) {
  test::RunRanks("cp=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    const CollectiveLabel label("bench");
    const auto full = [&](int64_t heads, double phase) {
      const at::Tensor numbers = at::arange(heads * sizes.length * kFeatures, at::kFloat) * 12.9898 + phase;
      return at::sin(numbers).view({1, heads, sizes.length, kFeatures}).to(sizes.dtype);
    };
    const std::vector<at::Tensor> all = {full(kHeads, 0), full(kKeyHeads, 1), full(kKeyHeads, 2)};
    const at::Tensor upstream = full(kHeads, 3);
    Ring zigzag(group, sizes, true, all, upstream);
    Ring plain(group, sizes, false, all, upstream);
    std::vector<at::Tensor> whole;
    for (const at::Tensor& tensor : all) whole.push_back(tensor.clone().requires_grad_());
    std::optional<at::Tensor> mask;
    if (sizes.window) {
      mask = at::ones({sizes.length, sizes.length}, at::kBool).tril().triu(1 - *sizes.window);
    }
    const auto run = [&](Ring& ring) {
      ring.Run(sizes);
      group->ExchangeNumbers(0, label);
    };
    const auto alone = [&] {
      if (group->rank() == 0) {
        for (const at::Tensor& tensor : whole) tensor.mutable_grad().reset();
        const at::Tensor k = whole[1].repeat_interleave(kHeads / kKeyHeads, 1);
        const at::Tensor v = whole[2].repeat_interleave(kHeads / kKeyHeads, 1);
        const at::Tensor out = at::scaled_dot_product_attention(whole[0], k, v, mask, 0.0, !mask, kScale);
        torch::autograd::backward({out}, {upstream});
      }
      group->ExchangeNumbers(0, label);
    };
    const PairTimes rings = TimePairs([&] { run(zigzag); }, [&] { run(plain); }, pairs, 2);
    const PairTimes times = TimePairs([&] { run(zigzag); }, alone, pairs, 2);
    if (mesh.rank() != 0) return;
    for (const Ring* ring : {&zigzag, &plain}) {
      const at::Tensor want = OwnTokens(whole[1].grad(), ring->steps, 0);
      const double difference = (ring->own[1].grad() - want).abs().max().item<double>();
      test::Expect(difference < (sizes.dtype == at::kFloat ? 1e-3 : 0.5), "the two compute different things");
    }
    std::printf(
        "%lld tokens, %s, window %lld: zigzag ring of 2 %.1f ms, plain ring %.1f ms, ratio %.3f; "
        "most over mean of the pairs %.3f and %.3f; one rank %.1f ms, zigzag over it %.3f\n",
        static_cast<long long>(sizes.length), c10::toString(sizes.dtype),
        static_cast<long long>(sizes.window.value_or(sizes.length)), rings.a_ms, rings.b_ms, rings.ratio,
        Imbalance(zigzag.steps, sizes.window), Imbalance(plain.steps, sizes.window), times.b_ms, times.ratio);
  });
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const moonshard::bench::Arguments arguments(argc, argv);
  const int pairs = arguments.Times(0, 10);
  using moonshard::bench::Sizes;
  const std::vector<Sizes> usual = {
      {1024, at::kFloat, {}}, {4096, at::kFloat, {}}, {4096, at::kFloat, 512}, {2048, at::kBFloat16, {}}};
  const std::vector<Sizes> small = {{64, at::kFloat, {}}, {64, at::kFloat, 8}, {64, at::kBFloat16, {}}};
  for (const Sizes& sizes : arguments.short_round() ? small : usual) moonshard::bench::Bench(sizes, pairs);
  return 0;
}
