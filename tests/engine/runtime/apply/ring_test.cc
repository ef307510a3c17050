// A ring in a plan, on attention of a host's own: SetRing, and classes without it.
#include <catch2/catch.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/types.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

constexpr int64_t kRingHeads = 2;
constexpr int64_t kRingFeatures = 4;  // of a head
constexpr int64_t kRingWidth = kRingHeads * kRingFeatures;

nn::Linear Square() { return nn::Linear(torch::nn::LinearOptions(kRingWidth, kRingWidth)); }

// Attention that knows nothing of rings.
struct PlainAttentionImpl : torch::nn::Module {
  PlainAttentionImpl() {
    q = register_module("q", Square());
    k = register_module("k", Square());
    v = register_module("v", Square());
    o = register_module("o", Square());
  }
  virtual at::Tensor Mix(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                         int64_t /*length*/) const {
    return at::scaled_dot_product_attention(queries, keys, values, {}, 0, /*is_causal=*/true);
  }
  at::Tensor forward(const at::Tensor& x, int64_t length) {
    const auto heads = [](const at::Tensor& flat) {
      return flat.view({flat.size(0), flat.size(1), kRingHeads, kRingFeatures}).transpose(1, 2);
    };
    return o(Mix(heads(q(x)), heads(k(x)), heads(v(x)), length).transpose(1, 2).flatten(2));
  }
  nn::Linear q = nullptr, k = nullptr, v = nullptr, o = nullptr;
};
MOONSHARD_MODULE(PlainAttention);

// Its values also depend on their positions, which are those of the rank's runs of tokens.
struct RingedAttentionImpl : PlainAttentionImpl {
  bool SetRing(std::shared_ptr<const AttentionRing> given) {
    if (refuses && given) return false;
    ++changes;
    ring = std::move(given);
    return true;
  }
  at::Tensor Mix(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                 int64_t length) const override {
    const at::Tensor positions = at::arange(1, length + 1, at::kDouble).view({1, 1, length, 1});
    if (!ring) return PlainAttentionImpl::Mix(queries, keys, values * positions, length);
    runs = ring->OwnTokens(length).size();
    const at::Tensor own = values * ring->OwnShard(positions, 2);
    return ring->Attend(queries, keys, own, length, {.scale = 1 / std::sqrt(static_cast<double>(kRingFeatures))});
  }
  at::Tensor forward(const at::Tensor& x, int64_t length) { return PlainAttentionImpl::forward(x, length); }
  std::shared_ptr<const AttentionRing> ring;
  mutable size_t runs = 0;  // of this rank's tokens
  bool refuses = false;
  int changes = 0;  // of the ring
};
MOONSHARD_MODULE(RingedAttention);

template <class Attention>
struct RingNetImpl : torch::nn::Module {
  RingNetImpl() {
    enter = register_module("enter", Square());
    attention = register_module("attention", Attention());
    leave = register_module("leave", Square());
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return leave(attention(enter(x), x.size(1))); }
  nn::Linear enter = nullptr, leave = nullptr;
  Attention attention = nullptr;
};
using RingedNetImpl = RingNetImpl<RingedAttention>;
MOONSHARD_MODULE(RingedNet);
using PlainNetImpl = RingNetImpl<PlainAttention>;
MOONSHARD_MODULE(PlainNet);

Plan PlanOnRing(const Layout& tokens = Layout::Shard(1)) {
  Placement own;
  own[MeshAxis::kCp] = tokens;
  const auto style = [](const char* name, const Placement& from, const Placement& in, const Placement& out,
                        const Placement& to) {
    Style made;
    made.name = name;
    made.inputs.emplace_back(Redistribution{from, in});
    made.outputs.emplace_back(Redistribution{out, to});
    return made;
  };
  Style ring = style("ring", own, own, own, own);
  ring.ring = Ring{.heads = kRingHeads, .kv_heads = kRingHeads};
  return PlanOfRules("ring", {{"enter", style("enter", Placement(), own, own, own)},
                              {"attention.{q,k,v}", style("own", own, own, own, own)},
                              {"attention.o", ring},
                              {"leave", style("leave", own, own, own, Placement())}});
}

TEST_CASE("a class with SetRing attends to the tokens of all ranks") {
  const Layout layout = GENERATE(Layout::Shard(1), Layout::Zigzag(1));
  for (const int64_t tokens : {1, 4, 7, 12}) {
    torch::manual_seed(3);
    RingedNet alone;
    at::Tensor x = at::randn({2, tokens, kRingWidth}, at::kDouble).set_requires_grad(true);
    const at::Tensor want = alone(x);
    want.pow(2).sum().backward();
    RunRanks("cp=3", [&](DeviceMesh& mesh) {
      RingedNet net;
      for (size_t p = 0; p < net->parameters().size(); ++p) {
        net->parameters()[p].data().copy_(alone->parameters()[p].data());
      }
      const at::Tensor own = x.detach().clone().set_requires_grad(true);
      auto sharded = Parallelize(net, PlanOnRing(layout), mesh);
      const at::Tensor got = sharded.forward(own);
      // Rank 2 has the neighbouring chunks 2 and 3 of 6.
      const bool two_runs = layout.zigzag && tokens == 12 && mesh.rank() < 2;
      Expect(net->attention->runs == (two_runs ? 2U : 1U) || tokens < 12, "the runs of tokens of this rank");
      Expect(got.allclose(want, 1e-12, 1e-12), "the result");
      got.pow(2).sum().backward();
      Expect(own.grad().allclose(x.grad(), 1e-12, 1e-12), "the gradient of the input");
      for (size_t p = 0; p < net->parameters().size(); ++p) {
        Expect(net->parameters()[p].grad().allclose(alone->parameters()[p].grad(), 1e-11, 1e-11), "a gradient");
      }
      Expect(sharded.applied().Findings().empty(), "every planned module was called");
    });
  }
}

struct TwoAttentionsImpl : torch::nn::Module {
  TwoAttentionsImpl() {
    first = register_module("first", RingedAttention());
    second = register_module("second", RingedAttention());
    second->refuses = true;
    to(at::kDouble);
    for (const at::Tensor& parameter : parameters()) parameter.data().fill_(0.1);  // the same on every rank
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x, x.size(1)), x.size(1)); }
  RingedAttention first = nullptr, second = nullptr;
};
MOONSHARD_MODULE(TwoAttentions);

TEST_CASE("applying a plan that fails takes the rings back that it gave") {
  Plan plan = PlanOnRing();
  std::erase_if(plan.rules, [](const Rule& rule) { return !rule.pattern.starts_with("attention."); });
  for (Rule& rule : plan.rules) rule.pattern = "{first,second}" + rule.pattern.substr(9);
  const std::vector<RankFailure> failures = RunRanksFailing("cp=2", [&](DeviceMesh& mesh) {
    TwoAttentions net;
    const at::Tensor x = at::ones({1, 5, kRingWidth}, at::kDouble);
    const at::Tensor before = net(x);
    try {
      Parallelize(net, plan, mesh);
    } catch (const std::exception& error) {
      Expect(std::string(error.what()).find("refuses a ring") != std::string::npos, error.what());
      Expect(net->first->changes == 2, "the first attention had a ring");
      Expect(net->first->ring == nullptr && net(x).equal(before), "the model is not as it was");
      throw;
    }
    Expect(false, "a refused ring is an error");
  });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) CHECK_THAT(failure.text, Catch::Contains("refuses a ring"));
}

TEST_CASE("a ring that the plan lost is refused for a class with SetRing, and the model is as it was") {
  RingedNet net;
  const at::Tensor x = at::ones({1, 5, kRingWidth}, at::kDouble);
  const at::Tensor before = net(x);
  Plan plan = PlanOnRing();
  for (Rule& rule : plan.rules) rule.style.ring.reset();
  const std::vector<RankFailure> failures =
      RunRanksFailing("cp=2", [&](DeviceMesh& mesh) { Parallelize(net, plan, mesh); });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) {
    CHECK_THAT(failure.text, Catch::Contains("the attention of 'attention' would attend to this rank's tokens alone"));
    CHECK_THAT(failure.text, Catch::Contains("the rank's own tokens at 'attention.q'"));
  }
  CHECK(net(x).equal(before));
}

TEST_CASE("attention without SetRing is refused, and the model is as it was") {
  PlainNet net;
  const at::Tensor x = at::ones({1, 5, kRingWidth}, at::kDouble);
  const at::Tensor before = net(x);
  const std::vector<RankFailure> failures =
      RunRanksFailing("cp=2", [&](DeviceMesh& mesh) { Parallelize(net, PlanOnRing(), mesh); });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) {
    CHECK_THAT(failure.text, Catch::Contains("'attention' does not compute its attention on a ring"));
    CHECK_THAT(failure.text, Catch::Contains("'attention.o', in a module of class PlainAttention"));
    CHECK_THAT(failure.text, Catch::Contains("context = \"ulysses\""));
  }
  CHECK(net(x).equal(before));
}

}  // namespace
}  // namespace moonshard::test
