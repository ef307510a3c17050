// Forward and backward of a cross entropy at tp=2 on thread ranks: on the vocabulary's shards, and by gathering the
// logits for torch's. Prints both times and their ratio, for logits that exist and for a head applied chunk by chunk
// (whose other side computes its logits, gathers them and keeps them).
//   bench_vocabulary_loss [PAIRS]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/runtime/redistribute/redistribute.h"
#include "engine/train/loss/losses.h"
#include "tests/bench/timing.h"
#include "tests/support/ranks.h"

namespace moonshard::bench {
namespace {

constexpr int64_t kHidden = 256;

struct Sizes {
  int64_t tokens;
  int64_t vocabulary;
  at::ScalarType dtype;
};

void Print(const char* what, Sizes sizes, const PairTimes& times) {
  std::printf("%s, %lld tokens, vocabulary %lld, %s: in shards %.2f ms, gathered %.2f ms, ratio %.3f\n", what,
              static_cast<long long>(sizes.tokens), static_cast<long long>(sizes.vocabulary),
              c10::toString(sizes.dtype), times.a_ms, times.b_ms, times.ratio);
}

void Bench(Sizes sizes, int pairs) {
  test::RunRanks("tp=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const Vocabulary vocabulary = Vocabulary::Make(group, sizes.vocabulary).ValueOrThrow();
    const TensorRedistribution gather = TensorRedistribution::Make(Layout::Shard(-1), Layout::Replicate(), group,
                                                                   {.from_size = sizes.vocabulary, .label = "gather"})
                                            .ValueOrThrow();
    const TensorRedistribution share =
        TensorRedistribution::Make(Layout::Replicate(), Layout::Shared(), group, {.label = "share"}).ValueOrThrow();
    const at::Tensor targets = (at::arange(sizes.tokens, at::kLong) * 7919).remainder(sizes.vocabulary);
    const int64_t columns = vocabulary.shard().length;
    const at::Tensor hidden = at::sin(at::arange(sizes.tokens * kHidden, at::kFloat) * 12.9898)
                                  .view({sizes.tokens, kHidden})
                                  .to(sizes.dtype)
                                  .requires_grad_();
    const at::Tensor weight = (at::sin(at::arange(columns * kHidden, at::kFloat) * 78.233 + group->rank()) * 0.1)
                                  .view({columns, kHidden})
                                  .to(sizes.dtype)
                                  .requires_grad_();
    const at::Tensor logits = at::linear(hidden, weight).detach().requires_grad_();
    const auto reset = [&] {
      for (const at::Tensor* tensor : {&logits, &hidden, &weight}) tensor->mutable_grad().reset();
    };
    const auto torch_loss = [&](const at::Tensor& mine) {
      return at::cross_entropy_loss(gather(mine).to(at::kFloat), targets);
    };
    const auto shards = [&] {
      reset();
      CrossEntropy(vocabulary, logits, targets).backward();
    };
    const auto gathered = [&] {
      reset();
      torch_loss(logits).backward();
    };
    HeadOptions options;
    options.hidden = Layout::Replicate();
    const auto chunked = [&] {
      reset();
      CrossEntropy(vocabulary, ShardedLogits::OfHead(vocabulary, hidden, weight, {}, options), targets).backward();
    };
    const auto full_head = [&] {
      reset();
      torch_loss(at::linear(share(hidden), weight)).backward();
    };
    const double difference = (CrossEntropy(vocabulary, logits, targets) - torch_loss(logits)).abs().item<double>();
    test::Expect(difference < 1e-3, "the two compute different things");
    const PairTimes on_logits = TimePairs(shards, gathered, pairs, 2);
    const PairTimes on_head = TimePairs(chunked, full_head, pairs, 2);
    if (mesh.rank() != 0) return;
    Print("logits", sizes, on_logits);
    Print("head", sizes, on_head);
  });
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const moonshard::bench::Arguments arguments(argc, argv);
  const int pairs = arguments.Times(0, 10);
  using moonshard::bench::Sizes;
  const std::vector<Sizes> full = {{512, 32000, at::kFloat}, {2048, 32000, at::kFloat}, {2048, 32000, at::kBFloat16}};
  const std::vector<Sizes> small = {{64, 4000, at::kFloat}, {64, 4000, at::kBFloat16}};
  for (const Sizes& sizes : arguments.short_round() ? small : full) moonshard::bench::Bench(sizes, pairs);
  return 0;
}
