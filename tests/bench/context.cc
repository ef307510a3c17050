// Forward and backward of the causal attention of one sequence: as a ring over cp=2 on two thread ranks of one thread
// each, and on one rank with one thread (scaled_dot_product_attention) while the other one waits. Prints both times and
// their ratio. The second rank of the ring has three quarters of the scores: 0.75 is what its work alone would take.
//   bench_context [PAIRS]
#include <cstdio>
#include <cstdlib>
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

void Bench(const Sizes& sizes, int pairs) {
  test::RunRanks("cp=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    const CollectiveLabel label("bench");
    const Interval block = RingSteps(sizes.length, sizes.window, 2).Block(group->rank());
    const auto full = [&](int64_t heads, double phase) {
      const at::Tensor numbers = at::arange(heads * sizes.length * kFeatures, at::kFloat) * 12.9898 + phase;
      return at::sin(numbers).view({1, heads, sizes.length, kFeatures}).to(sizes.dtype);
    };
    const std::vector<at::Tensor> all = {full(kHeads, 0), full(kKeyHeads, 1), full(kKeyHeads, 2)};
    const at::Tensor upstream = full(kHeads, 3);
    std::vector<at::Tensor> whole, own;
    for (const at::Tensor& tensor : all) {
      whole.push_back(tensor.clone().requires_grad_());
      own.push_back(tensor.narrow(2, block.begin, block.length).clone().requires_grad_());
    }
    const at::Tensor own_upstream = upstream.narrow(2, block.begin, block.length).contiguous();
    std::optional<at::Tensor> mask;
    if (sizes.window) {
      mask = at::ones({sizes.length, sizes.length}, at::kBool).tril().triu(1 - *sizes.window);
    }
    const auto run = [](const at::Tensor& out, const at::Tensor& gradient) {
      torch::autograd::backward({out}, {gradient});
    };
    const RingAttention attend(group, "bench");
    const auto ring = [&] {
      for (const at::Tensor& tensor : own) tensor.mutable_grad().reset();
      run(attend(own[0], own[1], own[2], sizes.length, {kScale, sizes.window, {}}), own_upstream);
      group->ExchangeNumbers(0, label);
    };
    const auto alone = [&] {
      if (group->rank() == 0) {
        for (const at::Tensor& tensor : whole) tensor.mutable_grad().reset();
        const at::Tensor k = whole[1].repeat_interleave(kHeads / kKeyHeads, 1);
        const at::Tensor v = whole[2].repeat_interleave(kHeads / kKeyHeads, 1);
        run(at::scaled_dot_product_attention(whole[0], k, v, mask, 0.0, !mask, kScale), upstream);
      }
      group->ExchangeNumbers(0, label);
    };
    const PairTimes times = TimePairs(ring, alone, pairs, 2);
    if (mesh.rank() != 0) return;
    const double difference =
        (own[1].grad() - whole[1].grad().narrow(2, block.begin, block.length)).abs().max().item<double>();
    test::Expect(difference < (sizes.dtype == at::kFloat ? 1e-3 : 0.5), "the two compute different things");
    std::printf("%lld tokens, %s, window %lld: ring of 2 %.1f ms, one rank %.1f ms, ratio %.3f\n",
                static_cast<long long>(sizes.length), c10::toString(sizes.dtype),
                static_cast<long long>(sizes.window.value_or(sizes.length)), times.a_ms, times.b_ms, times.ratio);
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
