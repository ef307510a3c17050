// RingAttention against scaled_dot_product_attention over the full sequence in one place, on thread ranks: the results
// and the gradients of queries, keys and values; its collectives against those that RingSteps predicts.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/core/base/text.h"
#include "engine/layout/ring_steps.h"
#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/mesh/recording_backend.h"
#include "engine/runtime/nn/autocast.h"
#include "engine/runtime/redistribute/ring_attention.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectEqual;
using test::RankFailure;
using test::RunRanks;
using test::RunRanksFailing;

// The sizes of an attention and its full tensors.
struct Sequence {
  int64_t batch = 2, heads = 4, key_heads = 2, features = 3, value_features = 3, length = 0;
  std::optional<int64_t> window;
  at::Tensor padding;
  double scale = 0.6;
  at::ScalarType dtype = at::kDouble;
  bool zigzag = false;
  std::string name;
  at::Tensor q, k, v, upstream;
  at::Tensor documents = {};

  RingAttentionOptions options() const { return {scale, window, padding, documents}; }
};

void Fill(Sequence& s, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto random = [&](int64_t heads, int64_t features) {
    return at::randn({s.batch, heads, s.length, features}, generator, at::kDouble).to(s.dtype);
  };
  s.q = random(s.heads, s.features);
  s.k = random(s.key_heads, s.features);
  s.v = random(s.key_heads, s.value_features);
  s.upstream = random(s.heads, s.value_features);
  s.name = "T=" + std::to_string(s.length) + ", heads " + std::to_string(s.heads) + "/" + std::to_string(s.key_heads) +
           ", features " + std::to_string(s.features) + "/" + std::to_string(s.value_features) + ", window " +
           (s.window ? std::to_string(*s.window) : "none") + (s.padding.defined() ? ", padded" : "") +
           (s.documents.defined() ? ", of documents" : "") + (s.zigzag ? ", zigzag" : "") + ", seed " +
           std::to_string(seed);
}

// The padding of a batch of two: `left` positions before the tokens of the first sequence and `right` after those of
// the second, or the other way around.
at::Tensor PaddingOf(int64_t length, int64_t left, int64_t right, bool swapped) {
  at::Tensor out = at::ones({2, length}, at::kBool);
  out[swapped ? 1 : 0].narrow(0, 0, std::min(left, length)).fill_(false);
  out[swapped ? 0 : 1].narrow(0, std::max<int64_t>(0, length - right), std::min(right, length)).fill_(false);
  return out;
}

// The documents of a batch of two, or the same of both rows: each has `length` / 3 + 1 tokens, in the second row in two
// parts.
at::Tensor DocumentsOf(int64_t length, bool same) {
  const at::Tensor first = at::arange(length).floor_divide(length / 3 + 1);
  return same ? first.unsqueeze(0) : at::stack({first, at::arange(length).remainder(length / 2 + 1)});
}

// Lengths from 1 to 17 with every kind of window, and in turn each kind of padding and of documents, heads of several
// groups, and other features of values than of keys.
std::vector<Sequence> Sequences(bool zigzag) {
  std::vector<Sequence> out;
  uint64_t seed = 0;
  for (int64_t length = 1; length <= 17; ++length) {
    const std::optional<int64_t> windows[] = {std::nullopt, 1, 2, 3, 5, 9, 40};
    for (const std::optional<int64_t>& window : windows) {
      ++seed;
      Sequence s;
      s.zigzag = zigzag;
      s.length = length;
      s.window = window;
      if (seed % 3 > 0) {
        const auto most = static_cast<int64_t>(seed % static_cast<uint64_t>(length + 1));
        s.padding = PaddingOf(length, most, length / 3, seed % 3 == 2);
      }
      if (seed % 4 > 1) s.documents = DocumentsOf(length, seed % 4 == 3);
      constexpr int64_t kHeads[][2] = {{4, 2}, {2, 2}, {3, 1}, {1, 1}};
      s.heads = kHeads[seed % 4][0];
      s.key_heads = kHeads[seed % 4][1];
      s.value_features = seed % 5 < 2 ? 5 : 3;
      Fill(s, seed);
      out.push_back(std::move(s));
    }
  }
  return out;
}

at::Tensor RingLeaf(const at::Tensor& value) { return value.detach().clone().set_requires_grad(true); }

struct Attended {
  at::Tensor out, of_q, of_k, of_v;
};

// bool [B or 1, 1, T, T]
at::Tensor MaskOf(const Sequence& s) {
  const at::Tensor position = at::arange(s.length);
  const at::Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
  at::Tensor mask = distance.ge(0);
  if (s.window) mask = mask.logical_and(distance.lt(*s.window));
  mask = mask.view({1, 1, s.length, s.length});
  if (s.documents.defined())
    mask = mask.logical_and(s.documents.unsqueeze(2).eq(s.documents.unsqueeze(1)).unsqueeze(1));
  return s.padding.defined() ? mask.logical_and(s.padding.unsqueeze(1).unsqueeze(1)) : mask;
}

// On the full sequence. A query without a key attends to its own one here, and its result is then made zero.
Attended AttendAlone(const Sequence& s) {
  const at::Tensor mask = MaskOf(s);
  const at::Tensor any = mask.any(-1, true);
  const at::Tensor q = RingLeaf(s.q), k = RingLeaf(s.k), v = RingLeaf(s.v);
  const int64_t group = s.heads / s.key_heads;
  const at::Tensor own = at::eye(s.length, at::kBool).view({1, 1, s.length, s.length});
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1),
      mask.logical_or(own.logical_and(any.logical_not())), 0.0, /*is_causal=*/false, s.scale);
  const at::Tensor out = mixed * any.to(s.dtype);
  torch::autograd::backward({out}, {s.upstream});
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

// The tokens of this rank.
struct Local {
  at::Tensor q, k, v, upstream;
};

using Tokens = std::vector<Interval>;

at::Tensor OfTokens(const at::Tensor& full, const Tokens& tokens) {
  std::vector<at::Tensor> runs = {full.narrow(2, 0, 0)};
  for (const Interval& run : tokens) runs.push_back(full.narrow(2, run.begin, run.length));
  return at::cat(runs, 2);
}

Tokens TokensOf(const Sequence& s, const AxisGroup& group) {
  return RingSteps(s.length, s.window, group.size(), s.zigzag).TokensOf(group.rank());
}

Local LocalOf(const Sequence& s, const AxisGroup& group) {
  const Tokens tokens = TokensOf(s, group);
  return {RingLeaf(OfTokens(s.q, tokens)), RingLeaf(OfTokens(s.k, tokens)), RingLeaf(OfTokens(s.v, tokens)),
          OfTokens(s.upstream, tokens)};
}

void ExpectNear(const at::Tensor& got, const at::Tensor& want, const std::string& what, double most = 1e-12) {
  Expect(got.defined() && got.sizes() == want.sizes(), what + ": another shape");
  Expect(got.scalar_type() == want.scalar_type(), what + ": another dtype");
  if (want.numel() == 0) return;
  const double error = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  Expect(error <= most, what + " differs by " + std::to_string(error) + " (" + std::to_string(error / most) +
                            " times the bound)");  // also NaN
}

void ExpectAsAlone(const Sequence& s, const Attended& alone, const std::shared_ptr<AxisGroup>& group,
                   double most = 1e-12) {
  const Tokens tokens = TokensOf(s, *group);
  const Local local = LocalOf(s, *group);
  const RingAttention attend(group, "attention", s.zigzag);
  const at::Tensor out = attend(local.q, local.k, local.v, s.length, s.options());
  ExpectNear(out.detach(), OfTokens(alone.out, tokens), s.name + ": the result", most);
  torch::autograd::backward({out}, {local.upstream});
  ExpectNear(local.q.grad(), OfTokens(alone.of_q, tokens), s.name + ": the gradient of the queries", most);
  ExpectNear(local.k.grad(), OfTokens(alone.of_k, tokens), s.name + ": the gradient of the keys", most);
  ExpectNear(local.v.grad(), OfTokens(alone.of_v, tokens), s.name + ": the gradient of the values", most);
}

void ExpectAllAsAlone(const std::vector<Sequence>& sequences, int64_t ranks, double most = 1e-12) {
  std::vector<Attended> alone;
  for (const Sequence& s : sequences) alone.push_back(AttendAlone(s));
  RunRanks("cp=" + std::to_string(ranks), [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    for (size_t i = 0; i < sequences.size(); ++i) ExpectAsAlone(sequences[i], alone[i], group, most);
  });
}

TEST_CASE("ring attention computes what attention over the full sequence computes") {
  const std::vector<Sequence> sequences = Sequences(GENERATE(false, true));
  for (const int64_t ranks : {1, 2, 3, 4}) ExpectAllAsAlone(sequences, ranks);
}

TEST_CASE("ring attention on eight ranks, some of them without tokens") {
  const bool zigzag = GENERATE(false, true);
  std::vector<Sequence> sequences;
  for (Sequence& s : Sequences(zigzag)) {
    if (s.length == 3 || s.length == 9 || s.length == 17) sequences.push_back(std::move(s));
  }
  ExpectAllAsAlone(sequences, 8);
}

TEST_CASE("ring attention pads a batch by one row of padding") {
  for (const int64_t window : {3, 40}) {
    Sequence s;
    s.length = 9;
    s.window = window;
    s.padding = PaddingOf(9, 2, 0, false).slice(0, 0, 1);
    Fill(s, 7);
    ExpectAllAsAlone({s}, 3);
  }
}

TEST_CASE("ring attention over an empty batch gives empty results, and runs its collectives") {
  for (const bool padded : {false, true}) {
    Sequence s;
    s.batch = 0;
    s.length = 8;
    if (padded) s.padding = at::ones({0, 8}, at::kBool);
    Fill(s, 1);
    RunRanks("cp=3", [&](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
      const Local local = LocalOf(s, *group);
      const at::Tensor out =
          RingAttention(group, "attention", s.zigzag)(local.q, local.k, local.v, s.length, s.options());
      Expect(out.sizes() == local.upstream.sizes(), "the result");
      torch::autograd::backward({out}, {local.upstream});
      for (const at::Tensor* leaf : {&local.q, &local.k, &local.v}) {
        Expect(leaf->grad().defined() && leaf->grad().sizes() == leaf->sizes(), "a gradient");
      }
      Expect(group->counts().of(Direction::kBackward, CollectiveKind::kAllToAll).count == 4, "exchanges");
    });
  }
}

// One call with its backward, and another one without gradients: what ran on this rank.
CollectiveCounts CountsOf(const Sequence& s, const std::shared_ptr<AxisGroup>& group, bool backward) {
  const Local local = LocalOf(s, *group);
  const RingAttention attend(group, "attention", s.zigzag);
  group->ClearCounts();
  const at::AutoGradMode mode(backward);
  const at::Tensor out = attend(local.q, local.k, local.v, s.length, s.options());
  if (backward) torch::autograd::backward({out}, {local.upstream});
  return group->counts();
}

TEST_CASE("ring attention runs the collectives and bytes that RingSteps predicts") {
  const bool zigzag = GENERATE(false, true);
  std::vector<Sequence> sequences;
  for (Sequence& s : Sequences(zigzag)) {
    if (s.length % 4 == 1) sequences.push_back(std::move(s));
  }
  for (const int64_t ranks : {1, 2, 3, 4}) {
    RunRanks("cp=" + std::to_string(ranks), [&](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
      for (const Sequence& s : sequences) {
        const RingSteps steps(s.length, s.window, ranks, s.zigzag);
        const int64_t elements = s.batch * s.key_heads * (s.features + s.value_features);
        const CollectiveCount forward = RingForward(steps, group->rank(), elements * 8);
        CollectiveCounts predicted;
        predicted.of(Direction::kForward, CollectiveKind::kAllToAll) = forward;
        Expect(CountsOf(s, group, false) == predicted, s.name + ": the forward");
        predicted.of(Direction::kBackward, CollectiveKind::kAllToAll) =
            RingBackward(steps, group->rank(), elements * 8, elements * 8);
        Expect(CountsOf(s, group, true) == predicted, s.name + ": forward and backward");
      }
    });
  }
}

// Ten tokens on four ranks are 3, 3, 3 and 1: each rank sends its own block to those behind it.
TEST_CASE("the bytes of ring attention in bfloat16") {
  RunRanks("cp=4", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    Sequence s;
    s.length = 10;
    s.dtype = at::kBFloat16;
    Fill(s, 1);
    const CollectiveCounts counts = CountsOf(s, group, true);
    constexpr int64_t kToken = 2 * 2 * (3 + 3);  // elements of the keys and values of one token
    const int64_t sent[] = {9, 6, 3, 0};
    const int64_t home[] = {0, 3, 6, 9};
    const auto r = static_cast<size_t>(mesh.rank());
    const int64_t keys = sent[r] * kToken * 2;
    Expect(counts.of(Direction::kForward, CollectiveKind::kAllToAll) == CollectiveCount{3, keys}, "the forward");
    Expect(
        counts.of(Direction::kBackward, CollectiveKind::kAllToAll) == CollectiveCount{6, keys + home[r] * kToken * 4},
        "the backward");
  });
}

// The reference is in float64, of the same rounded tensors. What is exchanged or summed in a shorter type would show:
// the gradients of the first keys are sums over 64 queries of four ranks.
TEST_CASE("ring attention in float32 and bfloat16 accumulates in float32") {
  for (const auto& [dtype, most] : {std::pair(at::kFloat, 2e-6), std::pair(at::kBFloat16, 0.00391)}) {
    std::vector<Sequence> sequences;
    std::vector<Attended> alone;
    for (const int64_t window : {1000, 24}) {
      Sequence s;
      s.length = 64;
      s.window = window;
      s.dtype = dtype;
      s.padding = PaddingOf(64, 5, 9, false);
      s.scale = 0.3;
      Fill(s, static_cast<uint64_t>(window));
      Sequence wide = s;
      wide.dtype = at::kDouble;
      for (at::Tensor* tensor : {&wide.q, &wide.k, &wide.v, &wide.upstream}) *tensor = tensor->to(at::kDouble);
      sequences.push_back(s);
      alone.push_back(AttendAlone(wide));
    }
    RunRanks("cp=4", [&](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
      for (size_t i = 0; i < sequences.size(); ++i) {
        const Sequence& s = sequences[i];
        const Local local = LocalOf(s, *group);
        const at::Tensor out =
            RingAttention(group, "attention", s.zigzag)(local.q, local.k, local.v, s.length, s.options());
        torch::autograd::backward({out}, {local.upstream});
        // `least`: the absolute error for a result near 0. The gradients of queries and keys have the rounding of the
        // result, with which the backward works.
        const auto expect = [&](const at::Tensor& got, const at::Tensor& want, const char* what, double least) {
          Expect(got.scalar_type() == dtype, std::string(what) + " has another dtype");
          const at::Tensor part = OfTokens(want, TokensOf(s, *group));
          const at::Tensor beyond = (got.to(at::kDouble) - part).abs() - (most * part.abs() + least);
          Expect(beyond.max().item<double>() <= 0, std::string(what) + ": beyond the rounding of one result");
        };
        expect(out.detach(), alone[i].out, "the result", 2e-6);
        expect(local.v.grad(), alone[i].of_v, "the gradient of the values", 2e-6);
        expect(local.q.grad(), alone[i].of_q, "the gradient of the queries", dtype == at::kFloat ? 2e-6 : 1e-3);
        expect(local.k.grad(), alone[i].of_k, "the gradient of the keys", dtype == at::kFloat ? 2e-6 : 3e-3);
      }
    });
  }
}

Sequence SequenceOf(int64_t length, std::optional<int64_t> window = std::nullopt) {
  Sequence s;
  s.length = length;
  s.window = window;
  Fill(s, static_cast<uint64_t>(length));
  return s;
}

// As recomputation does: without a graph, and again with one.
TEST_CASE("ring attention that runs twice gives the same result and one gradient") {
  const Sequence s = SequenceOf(11, 6);
  const Attended alone = AttendAlone(s);
  RunRanks("cp=3", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    const Local local = LocalOf(s, *group);
    const RingAttention attend(group, "attention", s.zigzag);
    at::Tensor first;
    {
      const at::NoGradGuard no_grad;
      first = attend(local.q, local.k, local.v, s.length, s.options());
    }
    Expect(!first.requires_grad(), "no history without gradients");
    const at::Tensor second = attend(local.q, local.k, local.v, s.length, s.options());
    ExpectEqual(second.detach(), first, "the second run");
    torch::autograd::backward({second}, {local.upstream});
    ExpectNear(local.k.grad(), OfTokens(alone.of_k, TokensOf(s, *group)), "the gradient of the keys");
  });
}

TEST_CASE("the backward of ring attention runs all collectives whichever tensors need a gradient") {
  const Sequence s = SequenceOf(9);
  const Attended alone = AttendAlone(s);
  RunRanks("cp=3", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    const Tokens tokens = TokensOf(s, *group);
    const RingAttention attend(group, "attention", s.zigzag);
    for (int64_t wanted = 0; wanted < 8; ++wanted) {
      // Another choice on every rank, but none on all or on no rank.
      const int64_t here = wanted == 0 ? 0 : (wanted + group->rank() - 1) % 7 + 1;
      const Local local = LocalOf(s, *group);
      const at::Tensor inputs[] = {local.q, local.k, local.v};
      const at::Tensor wants[] = {alone.of_q, alone.of_k, alone.of_v};
      for (size_t i = 0; i < 3; ++i) inputs[i].set_requires_grad(((here >> i) & 1) != 0);
      const at::Tensor out = attend(local.q, local.k, local.v, s.length, s.options());
      Expect(out.requires_grad() == (wanted != 0), "a history, if a tensor needs a gradient");
      if (wanted == 0) continue;
      group->ClearCounts();
      torch::autograd::backward({out}, {local.upstream});
      Expect(group->counts().of(Direction::kBackward, CollectiveKind::kAllToAll).count == 4, "all collectives");
      for (size_t i = 0; i < 3; ++i) {
        Expect(inputs[i].grad().defined() == inputs[i].requires_grad(), "a gradient where it is needed");
        if (inputs[i].grad().defined()) ExpectNear(inputs[i].grad(), OfTokens(wants[i], tokens), "the gradient");
      }
    }
  });
}

// A rank whose loss does not depend on the result has no gradient of it, but others have one of its keys.
TEST_CASE("a rank without a gradient of the result takes part in the backward of ring attention") {
  Sequence s = SequenceOf(6);
  s.upstream.narrow(2, 0, 2).zero_();
  const Attended alone = AttendAlone(s);
  RunRanks("cp=3", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    const Local local = LocalOf(s, *group);
    const at::Tensor out =
        RingAttention(group, "attention", s.zigzag)(local.q, local.k, local.v, s.length, s.options());
    const at::NoGradGuard no_grad;
    const torch::autograd::variable_list gradients =
        (*out.grad_fn())({mesh.rank() == 0 ? at::Tensor() : local.upstream});
    const at::Tensor of_k = OfTokens(alone.of_k, TokensOf(s, *group));
    Expect(of_k.abs().max().item<double>() > 0.01, "a gradient of the keys of every rank");
    ExpectNear(gradients[1], of_k, "the gradient of the keys");
  });
}

// More scores than are computed at a time: 2 * 2 * 400 * 400 on each of two ranks. The window is shorter than a block,
// so that the last queries attend to no key of the block before theirs.
TEST_CASE("ring attention of many tokens is computed in tiles") {
  for (const std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(150)}) {
    for (const int kind : {0, 1, 2, 3}) {
      const bool padded = kind % 2 == 1;
      Sequence s;
      s.zigzag = kind >= 2;
      s.length = 800;
      s.heads = 2;
      s.key_heads = 1;
      s.window = window;
      if (padded) s.padding = PaddingOf(800, 50, 450, false);
      Fill(s, 3);
      ExpectAllAsAlone({s}, 2, 1e-11);
    }
  }
}

TEST_CASE("ring attention under autocast computes in the lower type, as attention alone does") {
  const Sequence s = SequenceOf(8);
  RunRanks("cp=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    const Local local = LocalOf(s, *group);
    const auto as_float = [](const at::Tensor& tensor) { return RingLeaf(tensor.detach().to(at::kFloat)); };
    const at::Tensor q = as_float(local.q), k = as_float(local.k), v = as_float(local.v);
    const RingAttention attend(group, "attention", s.zigzag);
    const auto as_bfloat16 = [](const at::Tensor& tensor) { return tensor.detach().to(at::kBFloat16); };
    const at::Tensor want = attend(as_bfloat16(q), as_bfloat16(k), as_bfloat16(v), s.length, s.options());
    at::Tensor out;
    {
      const nn::Autocast autocast(at::kCPU, at::kBFloat16);
      out = attend(q, k, v, s.length, s.options());
    }
    ExpectEqual(out.detach(), want, "the result");
    torch::autograd::backward({out}, {local.upstream.to(at::kBFloat16)});
    Expect(q.grad().scalar_type() == at::kFloat && k.grad().scalar_type() == at::kFloat, "gradients in float32");
  });
}

// The only keys in reach of the last two tokens are in their own block, with weights of exp(-1000): what the block
// without keys adds must be zero, and not zero times exp(1000).
TEST_CASE("ring attention with very low scores, beside a block without any key") {
  Sequence s = SequenceOf(4);
  s.q.fill_(1);
  s.k.fill_(-1000.0 / (3 * s.scale));
  s.k.select(2, 3).mul_(1.0001);
  s.padding = PaddingOf(4, 2, 0, false);
  ExpectAllAsAlone({s}, 2, 1e-9);  // of gradients near 555
}

// How many scores a call computes with.
class ScoreCounter final : public OperatorHandler {
 public:
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override {
    if (op.schema().name() == "aten::amax") {
      scores += stack[stack.size() - op.schema().arguments().size()].toTensor().numel();
    }
    next.Run();
  }
  int64_t scores = 0;
};

TEST_CASE("a tile of ring attention computes the scores of the keys in reach") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape{});
  const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
  constexpr int64_t kLength = 2048;  // in tiles of 128 queries
  const at::Tensor x = at::ones({1, 1, kLength, 1});
  for (const std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(100)}) {
    ScoreCounter counter;
    {
      const OperatorScope scope(counter);
      RingAttention(group, "attention", false)(x, x, x, kLength, {.scale = 1, .window = window});
    }
    int64_t in_reach = 0;
    for (int64_t first = 0; first < kLength; first += 128) {
      in_reach += 128 * (window ? 128 + std::min<int64_t>(first, 99) : 128 + first);
    }
    CHECK(counter.scores == in_reach);
  }
}

// Every rank has the diagonals of two chunks, and two pairs of chunks in each other step. Of plain chunks, the last
// rank has all blocks.
TEST_CASE("the ranks of a zigzag ring compute equally many scores") {
  constexpr int64_t kRanks = 4, kChunk = 32;
  constexpr int64_t kLength = 2 * kRanks * kChunk;
  for (const bool zigzag : {false, true}) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("cp=4").ValueOrThrow(), rank, at::kCPU);
      const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
      const at::Tensor x = at::ones({1, 1, 2 * kChunk, 1});
      ScoreCounter counter;
      {
        const OperatorScope scope(counter);
        RingAttention(group, "attention", zigzag)(x, x, x, kLength, {.scale = 1});
      }
      // Chunks with themselves, and with earlier ones. The two chunks of the last rank are neighbours, and are computed
      // as one block, with the scores above its diagonal.
      const int64_t pairs = zigzag ? 2 + 2 * (kRanks - 1) + 1 + (rank + 1 == kRanks ? 1 : 0) : 4 * (rank + 1);
      CHECK(counter.scores == pairs * kChunk * kChunk);
    }
  }
}

// Sees the operators of one rank.
class Watcher final : public OperatorHandler {
 public:
  explicit Watcher(std::function<void()> seen) : seen_(std::move(seen)) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& /*stack*/, Next& next) override {
    next.Run();
    if (op.schema().name() == "aten::exp_") seen_();
  }

 private:
  std::function<void()> seen_;
};

// Rank 0 calls only after rank 1 has computed with its own block. A rank that waited for its next block first would
// wait for rank 0, and rank 0 for it.
TEST_CASE("the exchange of ring attention overlaps with the compute of a block") {
  const Sequence s = SequenceOf(8);
  std::promise<void> computed;
  const std::shared_future<void> until = computed.get_future().share();
  RunRanks("cp=2", [&](DeviceMesh& mesh) {
    // Without the comparison of calls, which waits for every rank.
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp, {.mode = CheckOptions::Mode::kNever});
    const Local local = LocalOf(s, *group);
    bool first = true;
    Watcher watcher([&] {
      if (std::exchange(first, false)) computed.set_value();
    });
    std::optional<OperatorScope> scope;
    if (mesh.rank() == 1) scope.emplace(watcher);
    if (mesh.rank() == 0) {
      Expect(until.wait_for(std::chrono::seconds(20)) == std::future_status::ready, "rank 1 waits for its next block");
    }
    RingAttention(group, "attention", s.zigzag)(local.q, local.k, local.v, s.length, s.options());
  });
}

// What a region declared.
class Declared final : public OperatorHandler {
 public:
  void Handle(const c10::OperatorHandle& /*op*/, c10::Stack& /*stack*/, Next& next) override { next.Run(); }
  void RegionInput(const RegionInfo& region, const at::Tensor& /*tensor*/, const Layout& layout) override {
    text += std::string(region.name) + " at " + std::string(region.label) + " takes " + layout.ToText() + "\n";
  }
  void RegionOutput(const RegionInfo& /*region*/, const at::Tensor& tensor, const Layout& layout,
                    bool summed) override {
    text += "makes " + ShapeToString(tensor.sizes()) + " " + layout.ToText() + (summed ? " summed" : "") + "\n";
  }
  std::string text;
};

TEST_CASE("ring attention declares its layouts, and runs on the meta device without peers") {
  const bool zigzag = GENERATE(false, true);
  for (const at::Device device : {at::Device(at::kMeta), at::Device(at::kCPU)}) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("cp=3").ValueOrThrow(), rank, device);
      const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
      const RingSteps steps(5, 4, 3, zigzag);
      const int64_t tokens = TokenCount(steps.TokensOf(rank));
      const auto leaf = [&](int64_t heads, int64_t features) {
        return at::ones({2, heads, tokens, features}, at::TensorOptions(device).dtype(at::kFloat)).requires_grad_();
      };
      const at::Tensor q = leaf(4, 3), k = leaf(2, 3), v = leaf(2, 5);
      RingAttentionOptions options{0.5, 4, at::ones({2, 5}, at::TensorOptions(device).dtype(at::kBool))};
      Declared declared;
      {
        const OperatorScope scope(declared);
        const at::Tensor out = RingAttention(group, "layers.0.attention", zigzag)(q, k, v, 5, options);
        CHECK(out.sizes() == at::IntArrayRef({2, 4, tokens, 5}));
        out.sum().backward();
      }
      const std::string t = std::to_string(tokens);
      const std::string layout = zigzag ? "shard(2,zigzag)\n" : "shard(2)\n";
      const std::string takes = "ring attention at layers.0.attention ring attention takes " + layout;
      const std::string takes_padding = "ring attention at layers.0.attention ring attention takes replicate\n";
      const auto makes = [&](const std::string& heads, const std::string& features) {
        return "makes [2, " + heads + ", " + t + ", " + features + "] " + layout;
      };
      CHECK(declared.text == takes + takes + takes + takes_padding + makes("4", "5") +  // the forward
                                 takes + takes + takes + takes + makes("4", "3") + takes + makes("2", "3") + takes +
                                 makes("2", "5"));
      CHECK(k.grad().sizes() == k.sizes());
      CHECK(v.grad().sizes() == v.sizes());
      CollectiveCounts predicted;
      predicted.of(Direction::kForward, CollectiveKind::kAllToAll) = RingForward(steps, rank, 2 * 2 * 8 * 4);
      predicted.of(Direction::kBackward, CollectiveKind::kAllToAll) =
          RingBackward(steps, rank, 2 * 2 * 8 * 4, 2 * 2 * 8 * 4);
      CHECK(group->counts() == predicted);
      CHECK(static_cast<int64_t>(mesh.recorded().size()) == 3 * steps.count());
    }
  }
}

TEST_CASE("a shard of another size is an error on every rank of ring attention") {
  const bool zigzag = GENERATE(false, true);
  const std::vector<RankFailure> failures = RunRanksFailing("cp=3", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    const int64_t tokens = mesh.rank() == 1 ? 3 : 2;
    const at::Tensor x = at::ones({1, 2, tokens, 4});
    RingAttention(group, "layer.attention", zigzag)(x, x, x, 6, {.scale = 1});
  });
  REQUIRE(failures.size() == 3);
  for (const RankFailure& failure : failures) {
    INFO(failure.text);
    CHECK_THAT(failure.text, Catch::Contains("with a shard of size 3, which is not the size that the layout gives"));
    CHECK_THAT(failure.text, Catch::Contains("layer.attention ring attention"));
  }
}

TEST_CASE("sizes that differ between the ranks are an error on every rank of ring attention") {
  for (const int64_t what : {0, 1, 2}) {
    const std::vector<RankFailure> failures = RunRanksFailing("cp=2", [&](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
      const bool other = mesh.rank() == 1;
      const at::Tensor x =
          at::ones({1, 2, 2, other && what == 0 ? 5 : 4}, other && what == 1 ? at::kDouble : at::kFloat);
      RingAttention(group, "layer.attention", false)(x, x, x, other && what == 2 ? 3 : 4, {.scale = 1});
    });
    REQUIRE(failures.size() == 2);
    for (const RankFailure& failure : failures) CHECK_THAT(failure.text, Catch::Contains("call different collectives"));
  }
}

TEST_CASE("tensors that do not fit together are an error of ring attention") {
  const at::Tensor x = at::ones({1, 4, 3, 8});
  struct Row {
    at::Tensor q, k, v;
    RingAttentionOptions options;
    std::string says;
  };
  const auto ones = [](at::IntArrayRef shape) { return at::ones(shape); };
  const std::vector<Row> rows = {
      {x, ones({1, 3, 3, 8}), ones({1, 3, 3, 8}), {}, "k Float [1, 3, 3, 8]"},
      {x, ones({2, 4, 3, 8}), x, {}, "k Float [2, 4, 3, 8]"},
      {x, ones({1, 4, 3, 7}), x, {}, "k Float [1, 4, 3, 7]"},
      {x, ones({1, 4, 2, 8}), x, {}, "k Float [1, 4, 2, 8]"},
      {x, x, ones({1, 2, 3, 8}), {}, "v Float [1, 2, 3, 8]"},
      {x, x, x.to(at::kDouble), {}, "v Double [1, 4, 3, 8]"},
      {ones({4, 3, 8}), x, x, {}, "q Float [4, 3, 8]"},
      {x.to(at::kLong), x.to(at::kLong), x.to(at::kLong), {}, "q Long [1, 4, 3, 8]"},
      {x, x, x, {.window = 0}, "a window of 0"},
      {x, x, x, {.padding = at::ones({1, 3})}, "padding Float [1, 3]"},
      {x, x, x, {.padding = at::ones({1, 4}, at::kBool)}, "padding Bool [1, 4]"},
      {x, x, x, {.documents = at::ones({1, 4}, at::kLong)}, "documents Long [1, 4]"},
      {ones({1, 4, 2, 8}), ones({1, 4, 2, 8}), ones({1, 4, 2, 8}), {}, "3 tokens on this rank"},
  };
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape{});
  const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
  for (const Row& row : rows) {
    INFO(row.says);
    CHECK_THROWS_WITH(RingAttention(group, "layer.attention", false)(row.q, row.k, row.v, 3, row.options),
                      Catch::Contains("the attention of 'layer.attention' over") && Catch::Contains(row.says));
  }
}

TEST_CASE("ring attention cannot be differentiated twice, also where the given gradient has no graph") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape{});
  const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
  const at::Tensor x = RingLeaf(at::ones({1, 1, 2, 3}));
  const at::Tensor out = RingAttention(group, "attention", false)(x, x, x, 2, {.scale = 1});
  CHECK_THROWS_WITH(torch::autograd::grad({out.sum()}, {x}, {}, true, /*create_graph=*/true),
                    Catch::Contains("ring attention cannot be differentiated twice"));
}

TEST_CASE("an input or a result that changed before the backward of ring attention is an error") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape{});
  const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
  for (const bool result : {true, false}) {
    const at::Tensor x = RingLeaf(at::ones({1, 1, 2, 3}));
    const at::Tensor q = x * 2;
    const at::Tensor out = RingAttention(group, "attention", false)(q, x, x, 2, {.scale = 1});
    const at::Tensor loss = out.sum();
    {
      const at::NoGradGuard no_grad;
      (result ? out : q).mul_(2);
    }
    CHECK_THROWS_WITH(loss.backward(), Catch::Contains("modified by an inplace operation"));
  }
}

}  // namespace
}  // namespace moonshard
