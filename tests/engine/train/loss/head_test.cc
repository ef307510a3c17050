// The losses on a head that is applied chunk by chunk: values, gradients of hidden states, weight and bias, and that no
// more than one chunk of logits ever exists.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/variable.h>

#include "tests/engine/train/loss/loss_cases.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectEqual;
using test::ExpectNear;
using test::ExpectOneCollective;
using test::kMeshes;
using test::kVocabularies;
using test::Numbers;
using test::RunRanks;
using test::ShardOf;
using test::SomeTargets;
using test::VocabularyOn;

constexpr int64_t kHidden = 6;

// A head, whole, and its loss as torch computes it.
struct FullHead {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor bias;

  explicit FullHead(int64_t vocabulary)
      : hidden(Numbers({2, 5, kHidden}, 2, 1)),
        weight(Numbers({vocabulary, kHidden}, 1, 2)),
        bias(Numbers({vocabulary}, 1, 3)) {}

  void RequireGradients() {
    for (at::Tensor* tensor : {&hidden, &weight, &bias}) *tensor = tensor->detach().clone().requires_grad_();
  }
};

// The sum over the ranks, as a caller of a `shared` layout makes it.
at::Tensor SumOverRanks(const Vocabulary& vocabulary, const at::Tensor& term) {
  const CollectiveUse use = {Direction::kBackward, &vocabulary.label(), term.sizes(), 0, -1};
  return vocabulary.group().AllReduce(term.clone(), use);
}

struct LocalHead {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor bias;

  LocalHead(const FullHead& full, const Vocabulary& vocabulary, at::ScalarType dtype = at::kDouble)
      : hidden(full.hidden.detach().to(dtype, false, true).requires_grad_()),
        weight(ShardOf(full.weight, 0, vocabulary).to(dtype).requires_grad_()),
        bias(ShardOf(full.bias, 0, vocabulary).to(dtype).requires_grad_()) {}
};

TEST_CASE("a chunked head gives the loss and gradients of the whole head") {
  for (const char* mesh_text : kMeshes) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      for (const int64_t size : kVocabularies) {
        const Vocabulary vocabulary = VocabularyOn(mesh, size);
        FullHead full(size);
        at::Tensor targets = SomeTargets({2, 5}, size);
        targets[0][1] = -100;
        full.RequireGradients();
        const at::Tensor all = at::linear(full.hidden, full.weight, full.bias);
        const at::Tensor want =
            at::cross_entropy_loss(all.view({-1, size}), targets.view({-1}), {}, at::Reduction::Mean, -100, 0.1);
        want.backward();
        for (const int64_t chunk : {1, 3, 10, 1000}) {
          const LocalHead local(full, vocabulary);
          HeadOptions options;
          options.chunk = chunk;
          vocabulary.group().ClearCounts();
          const auto head = ShardedLogits::OfHead(vocabulary, local.hidden, local.weight, local.bias, options);
          CrossEntropyOptions loss;
          loss.label_smoothing = 0.1;
          const at::Tensor got = CrossEntropy(vocabulary, head, targets, loss);
          got.backward();
          const std::string what = "vocabulary " + std::to_string(size) + " chunk " + std::to_string(chunk);
          ExpectOneCollective(vocabulary, what);
          ExpectNear(got, want, 1e-12, what);
          ExpectNear(local.weight.grad(), ShardOf(full.weight.grad(), 0, vocabulary), 1e-12, what + " weight");
          ExpectNear(local.bias.grad(), ShardOf(full.bias.grad(), 0, vocabulary), 1e-12, what + " bias");
          ExpectNear(SumOverRanks(vocabulary, local.hidden.grad()), full.hidden.grad(), 1e-12, what + " hidden");
        }
      }
    });
  }
}

TEST_CASE("every loss takes a head, with what is frozen left out") {
  RunRanks("tp=4", [](DeviceMesh& mesh) {
    for (const int64_t size : kVocabularies) {
      const Vocabulary vocabulary = VocabularyOn(mesh, size);
      const FullHead full(size);
      const at::Tensor targets = SomeTargets({2, 5}, size);
      const at::Tensor gradient = Numbers({2, 5}, 1, 7);
      const auto run = [&](const ShardedLogits& logits) {
        at::Tensor value = TokenLogProbs(vocabulary, logits, targets) + Entropy(vocabulary, logits);
        if (value.requires_grad()) value.backward(gradient);
        return value;
      };
      HeadOptions options;
      options.chunk = 4;
      const LocalHead kept(full, vocabulary);
      const at::Tensor want = run(at::linear(kept.hidden, kept.weight));
      for (const bool frozen_head : {false, true}) {
        const LocalHead local(full, vocabulary);
        local.weight.requires_grad_(!frozen_head);
        const auto head = ShardedLogits::OfHead(vocabulary, local.hidden, local.weight, {}, options);
        ExpectNear(run(head), want, 1e-12, "value");
        ExpectNear(local.hidden.grad(), kept.hidden.grad(), 1e-12, "hidden");
        Expect(local.weight.grad().defined() != frozen_head, "a frozen weight has no gradient");
        if (!frozen_head) ExpectNear(local.weight.grad(), kept.weight.grad(), 1e-12, "weight");
        const TopKResult top = TopK(vocabulary, head, 2);
        const TopKResult top_full = TopK(vocabulary, at::linear(kept.hidden, kept.weight).detach(), 2);
        ExpectNear(top.values, top_full.values, 1e-12, "top-k");
        ExpectEqual(top.ids, top_full.ids, "top-k");
      }
    }
  });
}

TEST_CASE("hidden states in another layout are moved as a colwise head moves them") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const int64_t size = 7;
    const Vocabulary vocabulary = VocabularyOn(mesh, size);
    FullHead full(size);
    full.RequireGradients();
    const at::Tensor targets = SomeTargets({2, 5}, size);
    const at::Tensor all = at::linear(full.hidden, full.weight);
    at::cross_entropy_loss(all.view({-1, size}), targets.view({-1})).backward();
    for (const Layout& layout : {Layout::Replicate(), Layout::Shard(1)}) {
      const LocalHead local(full, vocabulary);
      at::Tensor hidden = local.hidden.detach();
      if (layout.is_shard()) hidden = ShardOf(hidden, 1, vocabulary);
      hidden.requires_grad_();
      HeadOptions options;
      options.chunk = 4;
      options.hidden = layout;
      vocabulary.group().ClearCounts();
      CrossEntropy(vocabulary, ShardedLogits::OfHead(vocabulary, hidden, local.weight, {}, options), targets)
          .backward();
      const CollectiveKind back = layout.is_shard() ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
      Expect(vocabulary.group().counts().of(Direction::kBackward, back).count == 1, "the move's own collective");
      const at::Tensor want = layout.is_shard() ? ShardOf(full.hidden.grad(), 1, vocabulary) : full.hidden.grad();
      ExpectNear(hidden.grad(), want, 1e-12, layout.ToText());
    }
  });
}

TEST_CASE("gradients of a half-precision weight add up in float over the chunks") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const int64_t size = 8;
    const int64_t tokens = 4096;
    const Vocabulary vocabulary = VocabularyOn(mesh, size);
    FullHead full(size);
    full.hidden = Numbers({tokens, kHidden}, 0.1, 1) + 1;  // terms of one sign: in bfloat16 the sum would stall
    const at::Tensor targets = at::zeros({tokens}, at::kLong);
    const LocalHead local(full, vocabulary, at::kBFloat16);
    const LocalHead precise(full, vocabulary);
    HeadOptions options;
    options.chunk = 4;
    CrossEntropyOptions sum;
    sum.reduction = LossReduction::kSum;
    CrossEntropy(vocabulary, ShardedLogits::OfHead(vocabulary, local.hidden, local.weight, local.bias, options),
                 targets, sum)
        .backward();
    CrossEntropy(vocabulary, ShardedLogits::OfHead(vocabulary, precise.hidden, precise.weight, precise.bias), targets,
                 sum)
        .backward();
    Expect(local.weight.grad().scalar_type() == at::kBFloat16, "dtype");
    const auto error = [](const at::Tensor& got, const at::Tensor& want) {
      return ((got.to(at::kDouble) - want).norm() / want.norm()).item<double>();
    };
    Expect(error(local.weight.grad(), precise.weight.grad()) < 0.01, "weight");
    Expect(error(local.bias.grad(), precise.bias.grad()) < 0.01, "bias");
  });
}

// Live bytes of this thread's tensors, and the largest one made, while it stands.
class MemoryWatch {
 public:
  MemoryWatch() : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
  int64_t largest() const { return counter_->largest; }
  int64_t peak() const { return counter_->peak; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    int64_t live = 0;
    int64_t peak = 0;
    int64_t largest = 0;
    void reportMemoryUsage(void* /*pointer*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/,
                           c10::Device /*device*/) override {
      live += size;
      peak = std::max(peak, live);
      largest = std::max(largest, size);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };

  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

TEST_CASE("no more than one chunk of logits exists at a time") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const int64_t size = 8192;
    const int64_t tokens = 512;
    const int64_t chunk = 32;
    const Vocabulary vocabulary = VocabularyOn(mesh, size);
    const at::Tensor hidden = Numbers({tokens, 16}, 1, 1).to(at::kFloat).requires_grad_();
    const at::Tensor weight = ShardOf(Numbers({size, 16}, 0.2, 2).to(at::kFloat), 0, vocabulary).requires_grad_();
    const at::Tensor targets = SomeTargets({tokens}, size);
    const int64_t logits_bytes = tokens * (size / 2) * 4;
    const int64_t chunk_bytes = chunk * (size / 2) * 4;
    const int64_t gradient_bytes = hidden.numel() * 4 + weight.numel() * 4;
    {
      const MemoryWatch watch;
      CrossEntropy(vocabulary, at::linear(hidden, weight), targets).backward();
      Expect(watch.largest() == logits_bytes, "the watch sees the logits where they are kept");
      Expect(watch.peak() >= 2 * logits_bytes, "and their gradient");
    }
    hidden.mutable_grad().reset();
    weight.mutable_grad().reset();
    const MemoryWatch watch;
    HeadOptions options;
    options.chunk = chunk;
    CrossEntropy(vocabulary, ShardedLogits::OfHead(vocabulary, hidden, weight, {}, options), targets).backward();
    Expect(watch.largest() <= chunk_bytes, "the largest tensor is " + std::to_string(watch.largest()));
    // A chunk, the temporaries of a block of rows, the gradients, and some numbers per token.
    Expect(watch.peak() <= 4 * chunk_bytes + 2 * gradient_bytes, "the peak is " + std::to_string(watch.peak()));
  });
}

}  // namespace
}  // namespace moonshard
