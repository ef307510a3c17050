// The losses on shards of the vocabulary against torch's own on whole logits: values, gradients, collectives.
#include <catch2/catch.hpp>

#include <limits>

#include <ATen/ATen.h>
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kIgnored = -100;

at::Reduction::Reduction TorchOf(LossReduction reduction) {
  if (reduction == LossReduction::kMean) return at::Reduction::Mean;
  return reduction == LossReduction::kSum ? at::Reduction::Sum : at::Reduction::None;
}

// torch's cross entropy of whole logits [..., V], and the z term by its definition.
at::Tensor Reference(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyOptions& options) {
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)});
  const at::Tensor ids = targets.reshape({-1});
  at::Tensor value =
      at::cross_entropy_loss(rows, ids, {}, TorchOf(options.reduction), options.ignore_index, options.label_smoothing);
  if (options.z_loss > 0) {
    const at::Tensor counted = ids.ne(options.ignore_index);
    at::Tensor z = (at::logsumexp(rows, 1).square() * options.z_loss).masked_fill(counted.logical_not(), 0);
    if (options.reduction != LossReduction::kNone) z = z.sum();
    if (options.reduction == LossReduction::kMean) z = z / counted.sum();
    value = value + z;
  }
  return options.reduction == LossReduction::kNone ? value.view(targets.sizes()) : value;
}

// Both ways to a value and, weighted by `gradient`, to the gradient of the logits.
struct Case {
  at::Tensor logits;  // whole, double
  double tolerance = 1e-12;
  at::ScalarType dtype = at::kDouble;
};

template <class Sharded, class Full>
void Compare(const Vocabulary& vocabulary, const Case& c, Sharded&& sharded, Full&& whole, const std::string& what) {
  const at::Tensor all = c.logits.to(c.dtype).to(at::kDouble).clone().requires_grad_();
  const at::Tensor mine = ShardOf(c.logits.to(c.dtype), -1, vocabulary).requires_grad_();
  vocabulary.group().ClearCounts();
  const at::Tensor got = sharded(mine);
  const at::Tensor want = whole(all);
  ExpectNear(got, want, c.tolerance, what);
  Expect(got.scalar_type() == (c.dtype == at::kDouble ? at::kDouble : at::kFloat), what + ": dtype");
  const at::Tensor gradient = Numbers(want.sizes(), 1.5, 5) + 0.25;
  got.backward(gradient.to(got.scalar_type()));
  want.backward(gradient);
  Expect(mine.grad().scalar_type() == c.dtype, what + ": dtype of the gradient");
  const double rounding = c.dtype == at::kBFloat16 ? 1.0 / 256 : c.dtype == at::kHalf ? 1.0 / 2048 : c.tolerance;
  ExpectNear(mine.grad(), ShardOf(all.grad(), -1, vocabulary), rounding, what + ": gradient");
  ExpectOneCollective(vocabulary, what);
}

void CompareCrossEntropy(const Vocabulary& vocabulary, const Case& c, const at::Tensor& targets,
                         const CrossEntropyOptions& options, const std::string& what) {
  Compare(
      vocabulary, c, [&](const at::Tensor& mine) { return CrossEntropy(vocabulary, mine, targets, options); },
      [&](const at::Tensor& all) { return Reference(all, targets, options); }, what);
}

TEST_CASE("cross entropy equals torch's in double, with every option") {
  for (const char* mesh_text : kMeshes) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      for (const int64_t size : kVocabularies) {
        const Vocabulary vocabulary = VocabularyOn(mesh, size);
        const Case c{Numbers({2, 5, size}, 4, 1)};
        at::Tensor targets = SomeTargets({2, 5}, size);
        targets[0][1] = kIgnored;
        targets[1][4] = kIgnored;
        for (const auto reduction : {LossReduction::kMean, LossReduction::kSum, LossReduction::kNone}) {
          for (const double smoothing : {0.0, 0.1, 1.0}) {
            for (const double z : {0.0, 0.02}) {
              CompareCrossEntropy(vocabulary, c, targets, {reduction, kIgnored, smoothing, z},
                                  "vocabulary " + std::to_string(size) + " smoothing " + std::to_string(smoothing) +
                                      " z " + std::to_string(z) + " reduction " +
                                      std::to_string(static_cast<int>(reduction)));
            }
          }
        }
        // An id of the vocabulary as ignore_index; int32 targets; no token dims.
        CompareCrossEntropy(vocabulary, c, SomeTargets({2, 5}, size), {LossReduction::kMean, 2}, "ignored id");
        CompareCrossEntropy(vocabulary, Case{Numbers({size}, 4, 2)}, at::full({}, 1, at::kLong), {}, "one token");
        const at::Tensor mine = ShardOf(c.logits, -1, vocabulary);
        ExpectEqual(CrossEntropy(vocabulary, mine, targets.to(at::kInt)), CrossEntropy(vocabulary, mine, targets),
                    "int32 targets");
      }
    });
  }
}

TEST_CASE("log-probabilities and entropy equal their definitions in double") {
  for (const char* mesh_text : kMeshes) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      for (const int64_t size : kVocabularies) {
        const Vocabulary vocabulary = VocabularyOn(mesh, size);
        const Case c{Numbers({3, 4, size}, 6, 3)};
        at::Tensor targets = SomeTargets({3, 4}, size);
        targets[2][0] = kIgnored;
        const auto log_prob = [&](const at::Tensor& all) {
          const at::Tensor ids = targets.clamp_min(0).unsqueeze(-1);
          return at::log_softmax(all, -1).gather(-1, ids).squeeze(-1).masked_fill(targets == kIgnored, 0);
        };
        Compare(
            vocabulary, c, [&](const at::Tensor& mine) { return TokenLogProbs(vocabulary, mine, targets); }, log_prob,
            "log-probabilities of " + std::to_string(size));
        const auto entropy = [](const at::Tensor& all) {
          const at::Tensor log_p = at::log_softmax(all, -1);
          return -(log_p.exp() * log_p).sum(-1);
        };
        Compare(
            vocabulary, c, [&](const at::Tensor& mine) { return Entropy(vocabulary, mine); }, entropy,
            "entropy of " + std::to_string(size));
      }
    });
  }
}

TEST_CASE("half precision adds up in float") {
  for (const char* mesh_text : kMeshes) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      // In bfloat16 a sum of 3,000 ones would stop at 256.
      const int64_t size = 3001;
      const Vocabulary vocabulary = VocabularyOn(mesh, size);
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const Case c{Numbers({6, size}, 0.5, 4), 2e-6, dtype};
        const at::Tensor targets = SomeTargets({6}, size);
        const std::string what = c10::toString(dtype);
        CompareCrossEntropy(vocabulary, c, targets, {}, what);
        CompareCrossEntropy(vocabulary, c, targets, {LossReduction::kNone, kIgnored, 0.1, 1e-3}, what + " options");
        const auto entropy = [](const at::Tensor& all) {
          const at::Tensor log_p = at::log_softmax(all, -1);
          return -(log_p.exp() * log_p).sum(-1);
        };
        Compare(
            vocabulary, c, [&](const at::Tensor& mine) { return Entropy(vocabulary, mine); }, entropy,
            what + " entropy");
      }
    });
  }
}

TEST_CASE("targets that are all ignored give torch's value and no gradient") {
  RunRanks("tp=4", [](DeviceMesh& mesh) {
    for (const int64_t size : kVocabularies) {
      const Vocabulary vocabulary = VocabularyOn(mesh, size);
      const at::Tensor targets = at::full({2, 5}, kIgnored, at::kLong);
      for (const auto reduction : {LossReduction::kMean, LossReduction::kSum, LossReduction::kNone}) {
        const CrossEntropyOptions options{reduction, kIgnored, 0.1, 0.01};
        const at::Tensor mine = ShardOf(Numbers({2, 5, size}, 4, 1), -1, vocabulary).requires_grad_();
        const at::Tensor got = CrossEntropy(vocabulary, mine, targets, options);
        ExpectNear(got, Reference(Numbers({2, 5, size}, 4, 1), targets, options), 0, "value");
        got.sum().backward();
        ExpectEqual(mine.grad(), at::zeros_like(mine.grad()), "gradient");
      }
    }
  });
}

TEST_CASE("extreme logits give what torch gives") {
  for (const char* mesh_text : kMeshes) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      const int64_t size = 7;
      const Vocabulary vocabulary = VocabularyOn(mesh, size);
      at::Tensor logits = Numbers({9, size}, 3, 6);
      logits[0] *= 1e4;
      logits[1] += 1e4;
      logits[2] -= 1e4;
      logits[3].slice(0, 0, 4).fill_(-kInfinity);  // all that the first ranks have
      logits[4].fill_(-kInfinity);
      logits[4][5] = 1e4;
      logits[5].fill_(-kInfinity);  // no probability at all: NaN
      logits[6][3] = kInfinity;     // NaN
      logits[7][6] = std::numeric_limits<double>::quiet_NaN();
      const at::Tensor targets = at::tensor({1, 2, 3, 6, 5, 0, 3, 1, 4}, at::kLong);
      for (const double smoothing : {0.0, 0.1}) {
        for (const double z : {0.0, 0.01}) {
          const CrossEntropyOptions options{LossReduction::kNone, kIgnored, smoothing, z};
          CompareCrossEntropy(vocabulary, Case{logits}, targets, options, "double");
          CompareCrossEntropy(vocabulary, Case{logits, 1e-6, at::kFloat}, targets, options, "float");
        }
      }
      // A target whose own logit is -inf: an infinite loss with a finite gradient.
      CompareCrossEntropy(vocabulary, Case{logits.slice(0, 3, 5)}, at::tensor({0, 1}, at::kLong),
                          {LossReduction::kNone}, "impossible target");
      const auto entropy = [](const at::Tensor& all) {
        const at::Tensor p = at::softmax(all, -1);
        const at::Tensor log_p = at::log_softmax(all, -1).masked_fill(p == 0, 0);
        return -(p * log_p).sum(-1);
      };
      Compare(
          vocabulary, Case{logits.slice(0, 0, 5)}, [&](const at::Tensor& mine) { return Entropy(vocabulary, mine); },
          entropy, "entropy");
    });
  }
}

TEST_CASE("gradients equal finite differences") {
  RunRanks("tp=3", [](DeviceMesh& mesh) {
    const int64_t size = 7;
    const Vocabulary vocabulary = VocabularyOn(mesh, size);
    const at::Tensor logits = Numbers({3, size}, 2, 8);
    const at::Tensor targets = SomeTargets({3}, size);
    const at::Tensor weights = Numbers({3}, 1, 9);
    using Function = std::function<at::Tensor(const at::Tensor&)>;
    const std::vector<Function> functions = {
        [&](const at::Tensor& z) {
          return CrossEntropy(vocabulary, z, targets, {LossReduction::kNone, kIgnored, 0.2, 0.05});
        },
        [&](const at::Tensor& z) { return TokenLogProbs(vocabulary, z, targets); },
        [&](const at::Tensor& z) { return Entropy(vocabulary, z); }};
    for (const Function& function : functions) {
      const at::Tensor mine = ShardOf(logits, -1, vocabulary).requires_grad_();
      (function(mine) * weights).sum().backward();
      const at::Tensor slopes = at::zeros_like(logits);
      const double h = 1e-5;
      for (int64_t i = 0; i < logits.numel(); ++i) {
        const at::Tensor moved = logits.clone();
        moved.view({-1})[i] += h;
        const at::Tensor up = (function(ShardOf(moved, -1, vocabulary)) * weights).sum();
        moved.view({-1})[i] -= 2 * h;
        const at::Tensor down = (function(ShardOf(moved, -1, vocabulary)) * weights).sum();
        slopes.view({-1})[i] = (up - down) / (2 * h);
      }
      ExpectNear(mine.grad(), ShardOf(slopes, -1, vocabulary), 1e-9, "slope");
    }
  });
}

TEST_CASE("top-k gives the largest logits of the whole vocabulary") {
  for (const char* mesh_text : kMeshes) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      for (const int64_t size : kVocabularies) {
        const Vocabulary vocabulary = VocabularyOn(mesh, size);
        for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
          // No two equal, also in bfloat16, and -inf among them: no padding may take its place.
          const at::Tensor i = at::arange(size);
          at::Tensor logits = (at::stack({i, (i * 37).remainder(size), size - i}) - size / 2).to(dtype);
          logits[1][0] = -kInfinity;
          for (const int64_t k : {int64_t{1}, int64_t{2}, size}) {
            vocabulary.group().ClearCounts();
            const TopKResult got = TopK(vocabulary, ShardOf(logits, -1, vocabulary).requires_grad_(), k);
            ExpectOneCollective(vocabulary, "top-k");
            const auto [values, ids] = logits.topk(k, -1);
            ExpectEqual(got.values, values, "values");
            ExpectEqual(got.ids, ids, "ids");
            Expect(!got.values.requires_grad(), "no gradient");
          }
        }
      }
    });
  }
}

TEST_CASE("calls without gradients and without tokens") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const Vocabulary vocabulary = VocabularyOn(mesh, 7);
    const at::Tensor mine = ShardOf(Numbers({2, 7}, 3, 1), -1, vocabulary).requires_grad_();
    const at::Tensor targets = SomeTargets({2}, 7);
    {
      const at::NoGradGuard no_grad;
      Expect(!CrossEntropy(vocabulary, mine, targets).requires_grad(), "no_grad");
    }
    Expect(!CrossEntropy(vocabulary, mine.detach(), targets).requires_grad(), "nothing wants a gradient");
    const at::Tensor none = ShardOf(at::empty({0, 7}, at::kDouble), -1, vocabulary).requires_grad_();
    const at::Tensor sum = CrossEntropy(vocabulary, none, targets.slice(0, 0, 0), {LossReduction::kSum});
    sum.backward();
    ExpectEqual(sum.detach(), at::zeros({}, at::kDouble), "no tokens");
    ExpectEqual(none.grad(), at::zeros_like(none), "no tokens");
    // A result that is written into, and strided logits.
    const at::Tensor entropy = Entropy(vocabulary, mine);
    entropy.sum().backward({}, true);
    const at::Tensor first = mine.grad().clone();
    mine.mutable_grad().zero_();
    at::Tensor again = Entropy(vocabulary, mine);
    again.mul_(1);
    again.sum().backward();
    ExpectEqual(mine.grad(), first, "written into");
    const at::Tensor strided = ShardOf(Numbers({2, 7}, 3, 1).t().contiguous(), 0, vocabulary).t().requires_grad_();
    Entropy(vocabulary, strided).sum().backward();
    ExpectEqual(strided.grad(), first, "strided");
  });
}

}  // namespace
}  // namespace moonshard
