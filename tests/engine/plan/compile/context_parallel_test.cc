// A plan that shards the sequence on cp: the heads that tp leaves, the sums, the steps of several axes, and what they
// cost on a rank whose chunk is shorter.
#include "engine/plan/compile/context_parallel.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "engine/plan/compile/cost.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::MakeRule;
using test::Mesh;

Placement On(Layout cp, Layout tp = Layout::Replicate()) {
  Placement out = Placement(std::move(tp));
  out[MeshAxis::kCp] = std::move(cp);
  return out;
}

// An embedding whose ids are sliced, a projection of 8 heads of 4 features that are exchanged for tokens, the
// projection back, and a head whose output is full on every rank.
CompiledPlan CompileAttention(const std::string& mesh) {
  const auto tree = std::make_shared<const ModuleTree>(
      TreeFromText("(root) Model\nembed Embedding weight:float32[64, 16]\nattn Attention\nattn.q_proj Linear "
                   "weight:float32[32, 16]\n"
                   "attn.o_proj Linear weight:float32[16, 32]\nhead Linear weight:float32[64, 16]\n"));
  const Layout sequence = Layout::Shard(1);
  const Layout last = Layout::Shard(-1);
  const Layout heads = Layout::Shard(-1, 8);
  auto plan = std::make_shared<Plan>();
  plan->rules.push_back(
      MakeRule("embed", "embed", Layout::Replicate(), {Placement(), On(sequence)}, {On(sequence), On(sequence)}, 1));
  plan->rules.push_back(MakeRule("attn.q_proj", "colwise", Layout::Shard(0, 8),
                                 {On(sequence), On(sequence, Layout::Shared())},
                                 {On(sequence, heads), On(heads, heads)}, 2));
  plan->rules.push_back(MakeRule("attn.o_proj", "rowwise", Layout::Shard(1), {On(heads, last), On(sequence, last)},
                                 {On(sequence, Layout::Partial()), On(sequence)}, 3));
  plan->rules.push_back(MakeRule("head", "colwise", Layout::Shard(0), {On(sequence), On(sequence, Layout::Shared())},
                                 {On(sequence, last), Placement()}, 4));
  plan->data_parallel = DataParallel{};
  plan->data_parallel->shards = false;
  return ResolvePlan(plan, tree, Mesh(mesh)).ValueOrThrow();
}

size_t Find(const CompiledPlan& plan, const std::string& path) { return static_cast<size_t>(plan.tree->Find(path)); }

TEST_CASE("heads on cp are those that tp leaves") {
  const auto on_cp = [](const std::string& mesh) {
    const CompiledPlan plan = CompileAttention(mesh);
    return std::vector<std::string>{plan.LayoutsOf(Find(plan, "attn.q_proj")).outputs[0]->to[MeshAxis::kCp].ToText(),
                                    plan.LayoutsOf(Find(plan, "attn.o_proj")).inputs[0]->from[MeshAxis::kCp].ToText()};
  };
  const auto twice = [](const char* text) { return std::vector<std::string>(2, text); };
  CHECK(on_cp("cp=2") == twice("shard(-1,heads=8)"));
  CHECK(on_cp("cp=2,tp=2") == twice("shard(-1,heads=4)"));
  CHECK(on_cp("cp=2,tp=4") == twice("shard(-1,heads=2)"));
  CHECK(on_cp("tp=4") == twice("shard(-1,heads=8)"));  // not exchanged
}

TEST_CASE("every parameter of a plan that shards the sequence on cp is summed over cp") {
  for (const char* mesh : {"cp=2", "cp=2,tp=2", "cp=2,dp=2", "tp=2"}) {
    const CompiledPlan plan = CompileAttention(mesh);
    const bool context = plan.mesh.size(MeshAxis::kCp) > 1;
    CHECK(plan.context_parallel == context);
    CHECK(plan.sums_gradients);
    for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
      if (plan.tree->parameters(plan.tree->modules()[m]).empty()) continue;
      const std::vector<PlannedSum>& sums = plan.StepsOf(m).sums;
      const auto over_cp =
          std::ranges::count_if(sums, [](const PlannedSum& sum) { return sum.group.axes.contains(MeshAxis::kCp); });
      CHECK(over_cp == (context ? 1 : 0));
    }
    // One all-reduce over the ranks of dp_shard and cp, so that no bucket waits for the end of the backward.
    for (const GradientBucket& bucket : plan.buckets) {
      CHECK(!bucket.at_end);
      CHECK(ToText(bucket.group, plan.mesh) == "dp_shard x cp");
    }
  }
}

TEST_CASE("a weight that a rule shards on cp is refused beside ddp and fsdp") {
  const auto tree =
      std::make_shared<const ModuleTree>(TreeFromText("(root) Model\nproj Linear weight:float32[16, 16]\n"));
  const Layout sequence = Layout::Shard(1);
  for (const bool shards : {false, true}) {
    auto plan = std::make_shared<Plan>();
    plan->rules.push_back(
        MakeRule("proj", "cut", Layout::Replicate(), {Placement(), On(sequence)}, {On(sequence), On(sequence)}, 1));
    plan->rules[0].style.params["weight"] = On(Layout::Shard(1));
    plan->data_parallel = DataParallel{};
    plan->data_parallel->shards = shards;
    const Result<CompiledPlan> compiled = ResolvePlan(plan, tree, Mesh("dp=2,cp=2"));
    REQUIRE_FALSE(compiled.ok());
    const bool refused = std::ranges::any_of(compiled.diagnostics(), [](const Diagnostic& d) {
      return d.finding == Finding::kNotSupported && d.message.find("a layout on cp cannot be combined") == 0;
    });
    CHECK(refused);
  }
}

TEST_CASE("an outermost call compares its inputs on cp and on tp") {
  const auto axes = [](const std::string& mesh, const std::string& path) {
    const CompiledPlan plan = CompileAttention(mesh);
    std::vector<MeshAxis> out;
    for (const InputComparison& compared : plan.StepsOf(Find(plan, path)).compared) out.push_back(compared.axis);
    return out;
  };
  CHECK(axes("cp=2,tp=2", "") == std::vector{MeshAxis::kCp, MeshAxis::kTp});
  CHECK(axes("cp=2", "") == std::vector{MeshAxis::kCp});
  CHECK(axes("tp=2", "") == std::vector{MeshAxis::kTp});
  const CompiledPlan plan = CompileAttention("cp=2");
  CHECK(plan.StepsOf(Find(plan, "embed")).compared[0].arriving[0].replicated);
  CHECK(plan.StepsOf(Find(plan, "attn.q_proj")).compared[0].arriving[0].shard_dim == 1);
}

TEST_CASE("slices run from the outermost axis in, and gathers from the innermost axis out") {
  const MeshShape mesh = Mesh("dp=2,cp=2,tp=2");
  const Layout sequence = Layout::Shard(1);
  using Axes = std::vector<MeshAxis>;
  CHECK(MovingAxes(Redistribution{Placement(), On(sequence, sequence)}, mesh) == Axes{MeshAxis::kCp, MeshAxis::kTp});
  CHECK(MovingAxes(Redistribution{On(sequence, sequence), Placement()}, mesh) == Axes{MeshAxis::kTp, MeshAxis::kCp});
  CHECK(MovingAxes(Redistribution{On(sequence, Layout::Partial()), Placement()}, mesh) ==
        Axes{MeshAxis::kTp, MeshAxis::kCp});
  CHECK(MovingAxes(Redistribution{On(sequence, sequence), Placement()}, Mesh("cp=2")) == Axes{MeshAxis::kCp});
  CHECK(MovingAxes(std::nullopt, mesh).empty());
  const CompiledPlan plan = CompileAttention("cp=2,tp=2");
  Axes steps;
  for (const ModuleStep& step : plan.StepsOf(Find(plan, "head")).leave) {
    if (step.kind == StepKind::kRedistributeOutput) steps.push_back(step.axis);
  }
  CHECK(steps == Axes{MeshAxis::kTp, MeshAxis::kCp});
}

// Two rows of 13 tokens: ranks of cp have 7 and 6 of them.
TEST_CASE("collectives on chunks of the sequence are counted by the tokens of the rank") {
  const CompiledPlan plan = CompileAttention("cp=2,tp=2");
  const auto bytes = [&](int64_t rank, const std::string& path, Direction direction) {
    std::vector<int64_t> out;
    for (const PlannedCollective& c : CollectivesOf(plan, rank, {2, 13})) {
      if (c.module == plan.tree->Find(path) && c.direction == direction) out.push_back(c.bytes / (2 * 4));
    }
    return out;
  };
  using Elements = std::vector<int64_t>;  // of a row
  for (const int64_t rank : {0, 3}) {     // the first rank of cp and the second
    const int64_t own = rank == 0 ? 7 : 6;
    CHECK(bytes(rank, "embed", Direction::kForward) == Elements{});
    CHECK(bytes(rank, "embed", Direction::kBackward) == Elements{});  // ids have no gradient
    // A rank has half of the 32 features, and after the exchange a quarter of all tokens.
    CHECK(bytes(rank, "attn.q_proj", Direction::kForward) == Elements{own * 16});
    CHECK(bytes(rank, "attn.q_proj", Direction::kBackward) == Elements{own * 16, 13 * 8});
    CHECK(bytes(rank, "attn.o_proj", Direction::kForward) == Elements{13 * 8, own * 16});
    CHECK(bytes(rank, "attn.o_proj", Direction::kBackward) == Elements{own * 16});
    // Gathered on tp, then on cp.
    CHECK(bytes(rank, "head", Direction::kForward) == Elements{own * 64, 13 * 64});
    CHECK(bytes(rank, "head", Direction::kBackward) == Elements{own * 16});
  }
  CHECK(FewestTokens(plan).sequence == 2);
}

}  // namespace
}  // namespace moonshard
