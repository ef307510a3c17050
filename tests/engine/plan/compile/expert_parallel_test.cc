// A plan that sends tokens to experts on ep: the steps around the call, what they cost, the sums of gradients, and what
// the live tree is checked for that headers do not have. (tests/cases/compile/exchange_*.case has the errors.)
#include "engine/plan/compile/expert_parallel.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/explain/explain.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::MakeRule;
using test::Mesh;

Placement OnEp(Layout ep, Layout tp = Layout::Replicate()) {
  Placement out = Placement(std::move(tp));
  out[MeshAxis::kEp] = std::move(ep);
  return out;
}

constexpr Exchange kTwoOfTokens = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 2, .features = 4};

// A router and five experts of 6 features: modules, each a projection, or rows of one parameter.
Result<CompiledPlan> CompileExperts(const std::string& mesh, bool listed, bool shards = false,
                                    const std::string& tree_prefix = "(root) Model\n", int64_t owner_of_last = -1) {
  std::string text = tree_prefix + "gate Linear weight:float32[5, 4]\n";
  const bool headers = tree_prefix == "(headers)\n";
  if (!listed) text += "experts Experts up:float32[5, 6, 4]\n";
  if (listed)
    text += (headers ? "" : "experts Experts\n") + std::string("experts.{0..4} Linear weight:float32[6, 4]\n");
  const auto tree = std::make_shared<const ModuleTree>(TreeFromText(text));
  auto plan = std::make_shared<Plan>();
  Rule experts;
  experts.pattern = "experts";
  experts.style.name = "experts";
  experts.style.exchange = kTwoOfTokens;
  experts.style.outputs.emplace_back(Redistribution{Placement(Layout::Partial()), Placement()});
  if (listed) {
    experts.style.exchange->listed = 5;
  } else {
    experts.style.params["up"] = OnEp(Layout::Shard(0), Layout::Shard(1));
  }
  plan->rules.push_back(experts);
  const int64_t block = (5 + Mesh(mesh).size(MeshAxis::kEp) - 1) / Mesh(mesh).size(MeshAxis::kEp);
  for (int64_t i = 0; listed && i < 5; ++i) {
    const int64_t owner = i == 4 && owner_of_last >= 0 ? owner_of_last : i / block;
    Rule each = MakeRule("experts." + std::to_string(i), "own", Layout::Replicate(), {Placement(), Placement()},
                         {Placement(), Placement()}, static_cast<int>(i));
    each.style.params["weight"] = OnEp(Layout::Owned(0, owner), Layout::Shard(0));
    each.style.inputs.clear();
    each.style.outputs.clear();
    plan->rules.push_back(each);
  }
  plan->fallback = Style{};
  plan->data_parallel = DataParallel{};
  plan->data_parallel->shards = shards;
  return ResolvePlan(plan, tree, Mesh(mesh));
}

std::vector<std::string> KindsOf(const std::vector<ModuleStep>& steps) {
  std::vector<std::string> out;
  for (const ModuleStep& step : steps) out.emplace_back(InfoOf(step.kind).name);
  return out;
}

size_t IndexOf(const CompiledPlan& plan, const std::string& path) { return static_cast<size_t>(plan.tree->Find(path)); }

TEST_CASE("tokens are sent last before the call and come back first after it") {
  for (const bool listed : {true, false}) {
    const CompiledPlan plan = CompileExperts("ep=2,tp=2", listed).ValueOrThrow();
    CHECK(plan.exchanges_tokens());
    const ModuleSteps& steps = plan.StepsOf(IndexOf(plan, "experts"));
    const std::vector<std::string> enter = KindsOf(steps.enter);
    const std::vector<std::string> leave = KindsOf(steps.leave);
    CHECK(std::ranges::count(enter, "send_tokens") == 1);
    CHECK(enter.back() == "send_tokens");
    const auto back = std::ranges::find(leave, "return_tokens");
    const auto reduced = std::ranges::find(leave, "redistribute_output");
    REQUIRE((back != leave.end() && reduced != leave.end()));
    CHECK(back < reduced);
    CHECK(std::ranges::find(plan.groups, PlannedGroup{MeshAxis::kEp, 2}) != plan.groups.end());
  }
}

TEST_CASE("on a mesh without ep nothing is sent") {
  for (const bool listed : {true, false}) {
    const CompiledPlan plan = CompileExperts("dp=2,tp=2", listed).ValueOrThrow();
    CHECK_FALSE(plan.exchanges_tokens());
    const ModuleSteps& steps = plan.StepsOf(IndexOf(plan, "experts"));
    CHECK(std::ranges::count(KindsOf(steps.enter), "send_tokens") == 0);
    CHECK(std::ranges::count(KindsOf(steps.leave), "return_tokens") == 0);
  }
}

// Three rows of 7 tokens, each with 2 of the experts, of which a rank of ep=2 has a block of three, and float32.
TEST_CASE("an exchange costs the tokens of the rank and the numbers of all experts") {
  for (const bool listed : {true, false}) {
    const CompiledPlan plan = CompileExperts("ep=2,tp=2", listed).ValueOrThrow();
    for (int64_t rank = 0; rank < 4; ++rank) {
      std::vector<int64_t> forward;
      std::vector<int64_t> backward;
      for (const PlannedCollective& c : CollectivesOf(plan, rank, {3, 7})) {
        if (c.of != PlannedCollective::Of::kExchange && c.of != PlannedCollective::Of::kExchangeCounts) continue;
        CHECK(c.kind == CollectiveKind::kAllToAll);
        CHECK(c.module == plan.tree->Find("experts"));
        (c.direction == Direction::kForward ? forward : backward).push_back(c.bytes);
      }
      const int64_t rows = 3 * 7 * 2 * 4 * 4;
      CHECK(forward == std::vector<int64_t>{2 * 3 * 8, rows, rows});
      CHECK(backward == std::vector<int64_t>{rows, rows});
    }
  }
}

TEST_CASE("the gradient of an expert is not summed over ep, and that of the router is") {
  for (const bool listed : {true, false}) {
    for (const bool shards : {true, false}) {
      const CompiledPlan plan = CompileExperts("dp=2,ep=2", listed, shards).ValueOrThrow();
      const auto axes = [&](const std::string& path) {
        AxisSet out;
        for (const PlannedSum& sum : plan.StepsOf(IndexOf(plan, path)).sums) {
          for (const MeshAxis axis : sum.group.axes.axes()) out.insert(axis);
        }
        return ToString(out);
      };
      const std::string expert = listed ? "experts.3" : "experts";
      CHECK(axes(expert) == (shards ? "" : "dp_shard"));
      CHECK(axes("gate") == (shards ? "ep" : "dp_shard x ep"));
      const Placement& of_expert = plan.LayoutsOf(IndexOf(plan, expert)).params[0];
      CHECK(of_expert[MeshAxis::kEp].is_shard());
      CHECK(of_expert[MeshAxis::kDpShard] == (shards ? Layout::Shard(0) : Layout::Shared()));
      CHECK(plan.gradient_scale == 0.25);
      // ddp: buckets hold what is shared on both axes, and not the experts.
      size_t in_buckets = 0;
      for (const GradientBucket& bucket : plan.buckets) {
        in_buckets += bucket.params.size();
        CHECK(bucket.at_end);  // the exchanges of the backward run on ranks of the same axis
      }
      CHECK(in_buckets == (shards ? 0 : 1));
      CHECK(IsInBucket(plan, plan.LayoutsOf(IndexOf(plan, "gate")).params[0]) == !shards);
      CHECK_FALSE(IsInBucket(plan, of_expert));
    }
  }
}

TEST_CASE("a last block that is shorter belongs to the rank that receives its tokens") {
  // Five experts on four ranks: 2, 2, 1 and none.
  const CompiledPlan plan = CompileExperts("ep=4", true).ValueOrThrow();
  CHECK(plan.LayoutsOf(IndexOf(plan, "experts.4")).params[0][MeshAxis::kEp] == Layout::Owned(0, 2));
  const Result<CompiledPlan> other = CompileExperts("ep=4", true, false, "(root) Model\n", 3);
  REQUIRE_FALSE(other.ok());
  CHECK(other.diagnostics()[0].finding == Finding::kStyleDoesNotFit);
  CHECK(other.diagnostics()[0].path == "experts.4.weight");
  CHECK(other.diagnostics()[0].required == "{ owner = 2 }: each rank of ep has 2 consecutive experts");
}

TEST_CASE("the owners of experts are compared where the tree has the module that calls them") {
  CHECK(CompileExperts("ep=4", true, false, "(headers)\n").ok());
  CHECK(CompileExperts("ep=4", true, false, "(headers)\n", 3).ok());  // compared on the live tree
  CHECK_FALSE(CompileExperts("ep=4", true, false, "(root) Model\n", 3).ok());
}

TEST_CASE("the text of an exchange names its arguments, the experts and the capacity") {
  Exchange exchange = kTwoOfTokens;
  CHECK(ToText(exchange) == "inputs[tokens=0, ids=1, weights=2], features 4, experts 2");
  exchange.capacity = 1.25;
  exchange.listed = 8;
  CHECK(ToText(exchange) == "inputs[tokens=0, ids=1, weights=2], features 4, capacity 1.25, listed 8, experts 2");
}

}  // namespace
}  // namespace moonshard
