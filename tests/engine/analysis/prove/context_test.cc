// The types along cp of a model whose tokens are sharded: what treats all tokens alike is proven, and what mixes them,
// or counts them, while only a chunk is there, is found or named as not checked.
#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include "engine/analysis/prove/type_scope.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

constexpr int64_t kTokenWidth = 8;
constexpr int64_t kTokenIds = 12;

// What a module between the embedding and the head does with its tokens.
enum class TokenHabit {
  kAlike,
  kMean,
  kSum,
  kSoftmax,
  kCumulative,
  kShifted,
  kPositions,
  kDividesByTokens,
  kAttends,
  kOnes,
  kAny,
  kCountsOnes,
  kNormOfOnes
};

struct BetweenImpl : torch::nn::Module {
  explicit BetweenImpl(TokenHabit h) : habit(h) {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(kTokenWidth, kTokenWidth)));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::tanh(up(x));
    const int64_t tokens = x.size(1);
    switch (habit) {
      case TokenHabit::kAlike: return x + y;
      case TokenHabit::kMean: return x + at::tanh(y.mean({1}, true));
      case TokenHabit::kSum: return x + at::tanh(y.sum({1}, true));
      case TokenHabit::kSoftmax: return x + at::softmax(y, 1);
      case TokenHabit::kCumulative: return x + at::cumsum(y, 1);
      case TokenHabit::kShifted: return x + at::roll(y, 1, 1);
      case TokenHabit::kPositions: return x + y * at::arange(tokens, y.options()).view({1, tokens, 1});
      case TokenHabit::kDividesByTokens: return x + y / static_cast<double>(tokens);
      case TokenHabit::kOnes: {
        const at::Tensor ones = torch::ones({x.size(0), tokens, 1}, y.options());
        return x + y * ones + at::zeros_like(y) + y.new_full({tokens, 1}, 0.5).mean();
      }
      case TokenHabit::kAny: return x + y.gt(0.5).any(-1, true);
      case TokenHabit::kCountsOnes: return x + y / torch::ones({x.size(0), tokens, 1}, y.options()).sum(1, true);
      case TokenHabit::kNormOfOnes: return x + y / at::ones_like(y).norm();
      case TokenHabit::kAttends: return x + at::scaled_dot_product_attention(y, y, y);
    }
    return x;
  }
  nn::Linear up = nullptr;
  TokenHabit habit;
};
MOONSHARD_MODULE(Between);

struct TokenNetImpl : torch::nn::Module {
  explicit TokenNetImpl(TokenHabit habit) {
    embed = register_module("embed", nn::Embedding(torch::nn::EmbeddingOptions(kTokenIds, kTokenWidth)));
    between = register_module("between", Between(habit));
    head = register_module("head", nn::Linear(torch::nn::LinearOptions(kTokenWidth, kTokenIds).bias(false)));
  }
  at::Tensor forward(const at::Tensor& ids) { return head(between(embed(ids))); }
  nn::Embedding embed = nullptr;
  Between between = nullptr;
  nn::Linear head = nullptr;
};
MOONSHARD_MODULE(TokenNet);

Plan TokenPlan(const MeshShape& mesh, bool shards) {
  Placement sequence;
  sequence[MeshAxis::kCp] = mesh.size(MeshAxis::kCp) > 1 ? Layout::Shard(1) : Layout::Replicate();
  Style embed;
  embed.name = "embed";
  embed.inputs = {Redistribution{Placement(), sequence}};
  embed.outputs = {Redistribution{sequence, sequence}};
  Style head;
  head.name = "head";
  head.inputs = {Redistribution{sequence, sequence}};
  head.outputs = {Redistribution{sequence, Placement()}};
  Style full;
  full.name = "full";
  Plan plan = PlanOfRules("tokens", {{"embed", embed}, {"head", head}, {"between", full}, {"between.up", full}});
  plan.data_parallel.emplace().shards = shards;
  return plan;
}

Proof ProveTokens(const std::string& shape, TokenHabit habit, bool shards = true,
                  const std::function<void(CompiledPlan&)>& change = {}) {
  return ProveAtTwoSizes(
      MeshShape::Parse(shape).ValueOrThrow(), [&](const DeviceMesh& mesh, const TypeOptions& options) {
        TokenNet net(habit);
        const LiveTree live = ReadLiveTree(*net).ValueOrThrow();
        CompiledPlan compiled =
            ResolvePlan(std::make_shared<const Plan>(TokenPlan(mesh.shape(), shards)), live.tree, mesh.shape())
                .ValueOrThrow();
        if (change && mesh.shape().size(MeshAxis::kCp) > 1) {
          change(compiled);
          CompileSteps(compiled);
        }
        const auto applied = AppliedPlan::Apply(live, std::move(compiled), mesh, {});
        const at::Tensor ids = at::arange(2 * 8).remainder(kTokenIds).view({2, 8});
        TypeScope scope(*applied, options);
        try {
          const at::Tensor logits = net->forward(ids);
          const at::Tensor loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.flatten().clone());
          scope.Loss(loss);
          loss.backward();
        } catch (const c10::Error& error) {
          scope.Stopped(error.what_without_backtrace());
        }
        return scope.Finish();
      });
}

TEST_CASE("a model that treats all tokens alike is proven on cp, under fsdp and ddp") {
  for (const char* mesh : {"cp=2", "cp=4", "dp=2,cp=2"}) {
    for (const bool shards : {true, false}) {
      const Proof proof = ProveTokens(mesh, TokenHabit::kAlike, shards);
      INFO(mesh << (shards ? " fsdp" : " ddp") << "\n" << ToText(proof));
      CHECK(proof.holds());
      CHECK(proof.sizes_compared);
      CHECK(proof.scope.mesh == MeshShape::Parse(mesh).ValueOrThrow());
    }
  }
}

TEST_CASE("constants as long as the tokens of a rank are right on cp and on dp, and their number is not on cp") {
  for (const char* mesh : {"cp=2", "dp=2", "dp=2,cp=2"}) {
    for (const TokenHabit habit : {TokenHabit::kOnes, TokenHabit::kAny}) {
      const Proof proof = ProveTokens(mesh, habit);
      INFO(mesh << " " << static_cast<int>(habit) << "\n" << ToText(proof));
      CHECK(proof.holds());
    }
  }
  for (const TokenHabit habit : {TokenHabit::kCountsOnes, TokenHabit::kNormOfOnes}) {
    const Proof proof = ProveTokens("cp=2", habit);
    INFO(static_cast<int>(habit) << "\n" << ToText(proof));
    REQUIRE_FALSE(proof.faults.empty());
    CHECK(proof.faults.front().path == "between");
    CHECK(proof.faults.front().axis == MeshAxis::kCp);
    CHECK(ProveTokens("dp=2", habit).holds());
  }
}

TEST_CASE("a module without a rule that mixes tokens, or counts them, is not proven on cp") {
  for (const TokenHabit habit :
       {TokenHabit::kMean, TokenHabit::kSum, TokenHabit::kSoftmax, TokenHabit::kCumulative, TokenHabit::kShifted,
        TokenHabit::kPositions, TokenHabit::kDividesByTokens, TokenHabit::kAttends}) {
    const Proof proof = ProveTokens("cp=2", habit);
    INFO(static_cast<int>(habit) << "\n" << ToText(proof));
    CHECK_FALSE(proof.holds());
    bool there = false;
    for (const TypeFault& fault : proof.faults) there = there || fault.path.starts_with("between");
    for (const auto& [why, unproven] : proof.unproven) there = there || unproven.first.starts_with("between");
    for (const std::string& other : proof.sizes_not_compared)
      there = there || other.find("between") != std::string::npos;
    CHECK(there);
    CHECK(ProveTokens("dp=2", habit).faults.empty());
  }
}

TEST_CASE("a number that follows the tokens of a rank is a fault on cp") {
  for (const TokenHabit habit : {TokenHabit::kPositions, TokenHabit::kDividesByTokens}) {
    const Proof proof = ProveTokens("cp=2", habit);
    INFO(static_cast<int>(habit) << "\n" << ToText(proof));
    REQUIRE_FALSE(proof.faults.empty());
    CHECK(proof.faults.front().path == "between");
    CHECK(proof.faults.front().axis == MeshAxis::kCp);
  }
}

TEST_CASE("a gradient that is not summed over cp is found") {
  const auto forget = [](CompiledPlan& plan) {
    const auto m = static_cast<size_t>(plan.tree->Find("between.up"));
    plan.layouts.push_back(plan.LayoutsOf(m));
    for (Placement& placement : plan.layouts.back().params) placement[MeshAxis::kCp] = Layout::Replicate();
    plan.layouts_of[m] = static_cast<uint32_t>(plan.layouts.size()) - 1;
  };
  const Proof proof = ProveTokens("cp=2", TokenHabit::kAlike, /*shards=*/false, forget);
  INFO(ToText(proof));
  REQUIRE_FALSE(proof.faults.empty());
  CHECK(proof.faults.front().path.starts_with("between.up"));
  CHECK(proof.faults.front().axis == MeshAxis::kCp);
}

}  // namespace
}  // namespace moonshard::test
