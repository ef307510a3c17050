// RingAttention against scaled_dot_product_attention over the full sequence in one place, on thread ranks: the results
// and the gradients of queries, keys and values; its collectives against those that RingSteps predicts.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/layout/ring_steps.h"
#include "engine/runtime/intercept/operator_scope.h"
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
  std::string name;
  at::Tensor q, k, v, upstream;

  RingAttentionOptions options() const { return {scale, window, padding}; }
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
           (s.window ? std::to_string(*s.window) : "none") + (s.padding.defined() ? ", padded" : "") + ", seed " +
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

// Lengths from 1 to 17 with every kind of window and padding, heads of several groups, and other features of values
// than of keys.
std::vector<Sequence> Sequences() {
  std::vector<Sequence> out;
  uint64_t seed = 0;
  for (int64_t length = 1; length <= 17; ++length) {
    const std::optional<int64_t> windows[] = {std::nullopt, 1, 2, 3, 5, 9, 40};
    for (const std::optional<int64_t>& window : windows) {
      for (const int64_t padded : {0, 1, 2}) {
        ++seed;
        Sequence s;
        s.length = length;
        s.window = window;
        if (padded > 0) {
          const auto most = static_cast<int64_t>(seed % static_cast<uint64_t>(length + 1));
          s.padding = PaddingOf(length, most, length / 3, padded == 2);
        }
        constexpr int64_t kHeads[][2] = {{4, 2}, {2, 2}, {3, 1}, {1, 1}};
        s.heads = kHeads[seed % 4][0];
        s.key_heads = kHeads[seed % 4][1];
        s.value_features = seed % 3 == 0 ? 5 : 3;
        Fill(s, seed);
        out.push_back(std::move(s));
      }
    }
  }
  return out;
}

at::Tensor Leaf(const at::Tensor& value) { return value.detach().clone().set_requires_grad(true); }

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
  return s.padding.defined() ? mask.logical_and(s.padding.unsqueeze(1).unsqueeze(1)) : mask;
}

// On the full sequence. A query without a key attends to its own one here, and its result is then made zero.
Attended AttendAlone(const Sequence& s) {
  const at::Tensor mask = MaskOf(s);
  const at::Tensor any = mask.any(-1, true);
  const at::Tensor q = Leaf(s.q), k = Leaf(s.k), v = Leaf(s.v);
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

at::Tensor OfBlock(const at::Tensor& full, const Interval& block) {
  return full.narrow(2, block.begin, block.length);
}

Interval BlockOf(const Sequence& s, const AxisGroup& group) {
  return RingSteps(s.length, s.window, group.size()).Block(group.rank());
}

Local LocalOf(const Sequence& s, const AxisGroup& group) {
  const Interval block = BlockOf(s, group);
  return {Leaf(OfBlock(s.q, block)), Leaf(OfBlock(s.k, block)), Leaf(OfBlock(s.v, block)), OfBlock(s.upstream, block)};
}

void ExpectClose(const at::Tensor& got, const at::Tensor& want, const std::string& what, double most = 1e-12) {
  Expect(got.defined() && got.sizes() == want.sizes(), what + ": another shape");
  Expect(got.scalar_type() == want.scalar_type(), what + ": another dtype");
  if (want.numel() == 0) return;
  const double error = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  Expect(error <= most, what + " differs by " + std::to_string(error) + " (" + std::to_string(error / most) +
                            " times the bound)");  // also NaN
}

void ExpectAsAlone(const Sequence& s, const Attended& alone, const std::shared_ptr<AxisGroup>& group,
                   double most = 1e-12) {
  const Interval block = BlockOf(s, *group);
  const Local local = LocalOf(s, *group);
  const RingAttention attend(group, "attention");
  const at::Tensor out = attend(local.q, local.k, local.v, s.length, s.options());
  ExpectClose(out.detach(), OfBlock(alone.out, block), s.name + ": the result", most);
  torch::autograd::backward({out}, {local.upstream});
  ExpectClose(local.q.grad(), OfBlock(alone.of_q, block), s.name + ": the gradient of the queries", most);
  ExpectClose(local.k.grad(), OfBlock(alone.of_k, block), s.name + ": the gradient of the keys", most);
  ExpectClose(local.v.grad(), OfBlock(alone.of_v, block), s.name + ": the gradient of the values", most);
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
  const std::vector<Sequence> sequences = Sequences();
  for (const int64_t ranks : {1, 2, 3, 4}) ExpectAllAsAlone(sequences, ranks);
}

TEST_CASE("ring attention on eight ranks, some of them without tokens") {
  std::vector<Sequence> sequences;
  for (Sequence& s : Sequences()) {
    if (s.length == 3 || s.length == 9 || s.length == 17) sequences.push_back(std::move(s));
  }
  ExpectAllAsAlone(sequences, 8);
}

}  // namespace
}  // namespace moonshard
