// The steps of a compiled plan: which, in which order, shared between which modules.
#include "engine/plan/compile/module_steps.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "engine/plan/explain/explain.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::CompileMlp;
using test::MakeRule;
using test::Mesh;

// A Llama layer with sequence parallelism on tp, fsdp, recomputation, and bfloat16 with a norm that stays in float32.
CompiledPlan CompileLayers(const std::string& mesh, int layers = 2, bool sections = true) {
  std::string text = "(root) Model\nlayers ModuleList\n";
  for (int l = 0; l < layers; ++l) {
    const std::string layer = "layers." + std::to_string(l);
    text += layer + " Layer\n" + layer + ".norm RMSNorm weight:float32[8]\n" + layer + ".attn Attention\n";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      text += layer + ".attn." + name + " Linear weight:float32[8, 8]\n";
    }
  }
  text += "head Linear weight:float32[16, 8] bias:float32[16]\n";
  const auto tree = std::make_shared<const ModuleTree>(TreeFromText(text));
  const Placement tokens = Layout::Shard(1);
  const Placement last = Layout::Shard(-1);
  auto plan = std::make_shared<Plan>();
  plan->name = "layers";
  plan->rules.push_back(MakeRule("layers.*.norm", "norm_on", Layout::Shared(), {tokens, tokens}, {tokens, tokens}, 1));
  plan->rules.push_back(MakeRule("layers.*.attn.{q,k,v}_proj", "colwise", Layout::Shard(0),
                                 {tokens, Placement(Layout::Shared())}, {last, last}, 2));
  plan->rules.push_back(MakeRule("layers.*.attn.o_proj", "rowwise", Layout::Shard(1), {last, last},
                                 {Placement(Layout::Partial()), tokens}, 3));
  plan->rules.push_back(MakeRule("head", "colwise", Layout::Shard(0), {tokens, Placement(Layout::Shared())},
                                 {last, Placement(Layout::Replicate())}, 4));
  plan->rules.back().style.params["bias"] = Layout::Shard(0);
  if (sections) {
    plan->data_parallel = DataParallel{};
    plan->data_parallel->wrap = {{"layers.*", PatternSyntax::kGlob, {}}};
    plan->recompute.push_back({{{"layers.*", PatternSyntax::kGlob, {}}}, false, Recomputed::Matmuls::kNone, {}, {}});
    plan->precision = Precision{"bfloat16", "float32", "float32", true, {}};
    plan->kept_dtypes.push_back({{"layers.*.norm", PatternSyntax::kGlob, {}}, "float32"});
  }
  return ResolvePlan(plan, tree, Mesh(mesh)).ValueOrThrow();
}

const ModuleSteps& At(const CompiledPlan& plan, const std::string& path) {
  const int64_t module = plan.tree->Find(path);
  REQUIRE(module >= 0);
  return plan.StepsOf(static_cast<size_t>(module));
}

TEST_CASE("steps come in the order of their kinds, in every module") {
  for (const char* mesh : {"tp=2", "tp=2,dp=2", "dp=4", "tp=1"}) {
    const CompiledPlan plan = CompileLayers(mesh);
    for (const ModuleSteps& steps : plan.steps) {
      const auto kind = [](const ModuleStep& step) { return step.kind; };
      CHECK(std::ranges::is_sorted(steps.enter, {}, kind));
      CHECK(std::ranges::is_sorted(steps.leave, {}, kind));
      CHECK(std::ranges::all_of(
          steps.enter, [](StepKind k) { return InfoOf(k).begins; }, kind));
      CHECK(std::ranges::none_of(
          steps.leave, [](StepKind k) { return InfoOf(k).begins; }, kind));
    }
  }
}

TEST_CASE("step kinds have distinct names, in the order that JSON lists") {
  const JsonValue json = StepsAsJson(CompileMlp("tp=2"));
  const JsonValue::Array& order = json.Find("order")->AsArray();
  CHECK(order.size() == StepKinds().size());
  CHECK(order.front().AsString() == "ring_attention");  // runs in the enclosing module
  CHECK(order[1].AsString() == "begin_step");
  CHECK(order.back().AsString() == "end_step");
  std::set<std::string> names;
  for (const JsonValue& name : order) names.insert(name.AsString());
  CHECK(names.size() == StepKinds().size());
}

TEST_CASE("the program of a layer under tp, sequence parallelism, fsdp, recomputation and precision") {
  CHECK(
      ProgramText(CompileLayers("tp=2,dp=2")) ==
      R"(steps around the calls of modules, in the order in which they run; a call that is not inside another call also compares its inputs between the ranks of tp and runs the gradient sums:
  (root)
    enter begin step
          gather unit  (all_gather forward, reduce_scatter backward)
          cast arguments: bfloat16
          outermost call
          share results
    leave finish call
          cast results: float32
          reshard unit: when its backward ends
          end step
  layers
    enter share results
  layers.0
    enter gather unit  (all_gather forward, reduce_scatter backward)
          recompute
          share results
    leave reshard unit  (all_gather backward)
  layers.{0,1}.norm
    enter cast arguments: float32
    leave draw after: numbers of this rank
          cast results: as the first argument
  layers.{0,1}.attn
    enter share results
  layers.{0,1}.attn.q_proj
    enter redistribute input 0: shard(1) -> shared on tp, one collective for 3 siblings  (all_gather forward, reduce_scatter backward)
    leave draw after: numbers of this rank
  layers.{0,1}.attn.k_proj
    enter redistribute input 0: shard(1) -> shared on tp, the result of q_proj
    leave draw after: numbers of this rank
  layers.{0,1}.attn.v_proj
    enter redistribute input 0: shard(1) -> shared on tp, the result of q_proj
    leave draw after: numbers of this rank
  layers.{0,1}.attn.o_proj
    leave draw after: numbers of this rank
          redistribute output 0: partial -> shard(1) on tp  (reduce_scatter forward, all_gather backward)
  layers.1
    enter gather unit  (all_gather forward, reduce_scatter backward)
          recompute
          share results
    leave reshard unit: when its backward ends
  head
    enter redistribute input 0: shard(1) -> shared on tp  (all_gather forward, reduce_scatter backward)
    leave draw after: numbers common to tp
          redistribute output 0: shard(-1) -> replicate on tp  (all_gather forward)
  groups: dp_shard, tp
  gradients summed over tp, in one all_reduce per dtype when the backward ends: layers.{0,1}.norm.weight
)");
}

TEST_CASE("layers that do the same share programs") {
  CHECK(CompileLayers("tp=2,dp=2", 4).steps.size() == CompileLayers("tp=2,dp=2", 40).steps.size());
}

TEST_CASE("the first sibling runs a redistribution and the others take its result") {
  const CompiledPlan plan = CompileLayers("tp=2", 2, false);
  const auto input = [&](const std::string& path) {
    const std::vector<ModuleStep>& steps = At(plan, path).enter;
    return *std::ranges::find(steps, StepKind::kRedistributeInput, &ModuleStep::kind);
  };
  CHECK(input("layers.0.attn.q_proj").uses == 3);
  CHECK(input("layers.0.attn.q_proj").shared_with.empty());
  CHECK(input("layers.1.attn.v_proj").shared_with == "q_proj");
  CHECK(input("head").uses == 1);
}

TEST_CASE("on one rank calls are left alone but for the root's") {
  const CompiledPlan plan = CompileLayers("tp=1", 2, false);
  CHECK(At(plan, "layers.0.attn.q_proj").empty());
  CHECK(At(plan, "layers.0").empty());
  CHECK(!At(plan, "").empty());
  CHECK(plan.groups == std::vector<PlannedGroup>{{MeshAxis::kTp, 1}});
}

TEST_CASE("groups come in the order in which they are made, whole axes first") {
  const CompiledPlan plan = CompileLayers("tp=2,dp=2");
  CHECK(plan.groups == std::vector<PlannedGroup>{{MeshAxis::kDpShard, 2}, {MeshAxis::kTp, 2}});
}

}  // namespace
}  // namespace moonshard
