// The compiled steps are what runs, and all that runs: without the sections of the plan that it was compiled from the
// run is the same, and a field that is changed in it changes the run in the way that the field says.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/fsdp/unit.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

Plan FullPlan() {
  Plan plan = NetRules();
  plan.data_parallel = DataParallel{};
  plan.data_parallel->wrap = {{"layer_*"}};
  plan.data_parallel->reshard = DataParallel::Reshard::kAlways;
  plan.precision = Precision{"float32", "float64", "float64", true, {}};
  plan.recompute.push_back({{{"layer_1"}}, false, Recomputed::Matmuls::kAll, {}, {}});
  plan.kept_dtypes.push_back({{{"layer_*.norm"}}, "float64"});
  return plan;
}

// What of the plan a run may still read: where its lines are, for messages, and that there is a data-parallel section,
// without which layouts on its axes are refused.
void DropSections(CompiledPlan& compiled) {
  auto bare = std::make_shared<Plan>(*compiled.plan);
  bare->data_parallel = DataParallel{};
  bare->precision.reset();
  bare->kept_dtypes.clear();
  for (Recomputed& section : bare->recompute) section = {};
  for (Rule& rule : bare->rules) rule.style = {};
  compiled.plan = bare;
}

// Of two micro-batches of one step: outputs, gradients of shards, collectives, calls of the second layer, bytes that
// stay gathered after the first forward.
struct Run {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> grads;
  std::string collectives;
  int64_t layer_calls = 0;
  int64_t gathered = 0;

  bool SameNumbers(const Run& other) const {
    bool same = outputs.size() == other.outputs.size() && grads.size() == other.grads.size();
    for (size_t i = 0; same && i < outputs.size(); ++i) same = outputs[i].equal(other.outputs[i]);
    for (size_t i = 0; same && i < grads.size(); ++i) {
      same = grads[i].defined() == other.grads[i].defined() &&
             (!grads[i].defined() || (grads[i].sizes() == other.grads[i].sizes() && grads[i].equal(other.grads[i])));
    }
    return same;
  }
  bool operator==(const Run& other) const {
    return SameNumbers(other) && collectives == other.collectives && layer_calls == other.layer_calls &&
           gathered == other.gathered;
  }
};

using Change = std::function<void(CompiledPlan&)>;

std::string TextOf(const CollectiveCounts& counts) {
  std::ostringstream out;
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (CollectiveKind kind : kCollectiveKinds) {
      out << counts.of(direction, kind).count << " (" << counts.of(direction, kind).bytes << ") ";
    }
  }
  return out.str();
}

Run RunWith(const DeviceMesh& mesh, const Change& change) {
  Net net = MakeNet({});
  const LiveTree live = ReadLiveTree(*net).ValueOrThrow();
  CompiledPlan compiled = ResolvePlan(std::make_shared<const Plan>(FullPlan()), live.tree, mesh.shape()).ValueOrThrow();
  change(compiled);
  const auto applied = AppliedPlan::Apply(live, std::move(compiled), mesh);
  Run run;
  for (int64_t micro = 0; micro < 2; ++micro) {
    applied->SetGradientSync(micro == 1);
    const at::Tensor ids =
        (torch::arange(10) * 3 + 2 * micro + mesh.coordinate(MeshAxis::kDpShard)).remainder(kVocabulary).view({2, 5});
    const at::Tensor out = net(ids);
    run.outputs.push_back(out.detach().clone());
    for (const std::shared_ptr<Unit>& unit : applied->units()) run.gathered += unit->gathered_bytes();
    (out * out).sum().backward();
    for (const std::shared_ptr<Unit>& unit : applied->units()) run.gathered += unit->gathered_bytes();
  }
  for (const LiveParameter& parameter : applied->parameters()) run.grads.push_back(parameter.tensor.grad());
  run.collectives = TextOf(applied->counts());
  run.layer_calls = net->layers[1]->runs;
  return run;
}

// The steps of one kind, of every module.
void EachStep(CompiledPlan& compiled, StepKind kind, const std::function<void(ModuleStep&)>& change) {
  int found = 0;
  for (ModuleSteps& steps : compiled.steps) {
    for (auto* list : {&steps.enter, &steps.leave}) {
      for (ModuleStep& step : *list) {
        if (step.kind != kind) continue;
        change(step);
        ++found;
      }
    }
  }
  Expect(found > 0, "the program has no step to change");
}

ModuleSteps& ProgramAt(CompiledPlan& compiled, const std::string& path) {
  return compiled.steps[compiled.steps_of[static_cast<size_t>(compiled.tree->Find(path))]];
}

TEST_CASE("a run reads the compiled program and no section of the plan") {
  RunRanks("dp=2,tp=2", [](DeviceMesh& mesh) {
    const Run full = RunWith(mesh, [](CompiledPlan&) {});
    Expect(RunWith(mesh, [](CompiledPlan&) {}) == full, "two runs are the same");
    Expect(RunWith(mesh, DropSections) == full, "a run without the plan's sections is the same");
  });
}

TEST_CASE("a changed field of the compiled program changes the run") {
  struct Row {
    const char* field;
    Change change;
    std::function<bool(const Run& before, const Run& after)> shows;
  };
  const auto other_numbers = [](const Run& a, const Run& b) { return !a.SameNumbers(b); };
  const auto other_collectives = [](const Run& a, const Run& b) { return a.collectives != b.collectives; };
  const auto more_gathered = [](const Run& a, const Run& b) { return b.gathered > a.gathered; };
  const std::vector<Row> rows = {
      {"unit_settings.keep_unsynced", [](CompiledPlan& p) { p.unit_settings.keep_unsynced = true; }, more_gathered},
      {"unit_settings.accumulate_shards", [](CompiledPlan& p) { p.unit_settings.accumulate_shards = true; },
       other_collectives},
      {"unit_settings.reduce_dtype", [](CompiledPlan& p) { p.unit_settings.reduce_dtype = "bfloat16"; }, other_numbers},
      {"unit.reshard",
       [](CompiledPlan& p) {
         for (ShardedUnit& unit : p.units) unit.reshard = false;
       },
       other_collectives},
      {"gradient_scale", [](CompiledPlan& p) { p.gradient_scale = 1; }, other_numbers},
      {"program.dtype", [](CompiledPlan& p) { ProgramAt(p, "layer_0.norm").dtype = "float32"; }, other_numbers},
      {"program.sums",
       [](CompiledPlan& p) {
         for (ModuleSteps& steps : p.steps) steps.sums.clear();
       },
       other_collectives},
      {"cast arguments",
       [](CompiledPlan& p) { EachStep(p, StepKind::kCastArguments, [](ModuleStep& s) { s.dtype = "bfloat16"; }); },
       other_numbers},
      {"recompute",
       [](CompiledPlan& p) {
         ModuleSteps& steps = ProgramAt(p, "layer_1");
         const auto step = std::ranges::find(steps.enter, StepKind::kRecompute, &ModuleStep::kind);
         const auto index = static_cast<int32_t>(step - steps.enter.begin());
         steps.enter.erase(step);
         for (ModuleStep& leaving : steps.leave) leaving.ends -= leaving.ends > index ? 1 : 0;
       },
       [](const Run& a, const Run& b) { return a.layer_calls == 2 * b.layer_calls && a.SameNumbers(b); }},
  };
  for (const Row& row : rows) {
    INFO(row.field);
    RunRanks("dp=2,tp=2", [&](DeviceMesh& mesh) {
      const Run before = RunWith(mesh, [](CompiledPlan&) {});
      const Run after = RunWith(mesh, row.change);
      Expect(row.shows(before, after), std::string("a change of ") + row.field + " does not show");
    });
  }
}

TEST_CASE("ranks whose compiled programs differ in any setting do not begin") {
  const std::vector<std::pair<const char*, Change>> rows = {
      {"keep_unsynced", [](CompiledPlan& p) { p.unit_settings.keep_unsynced = true; }},
      {"accumulate_shards", [](CompiledPlan& p) { p.unit_settings.accumulate_shards = true; }},
      {"offload", [](CompiledPlan& p) { p.unit_settings.offload = true; }},
      {"prefetch_forward", [](CompiledPlan& p) { p.unit_settings.prefetch_forward = 3; }},
      {"prefetch_backward", [](CompiledPlan& p) { p.unit_settings.prefetch_backward = 0; }},
      {"reduce_dtype", [](CompiledPlan& p) { p.unit_settings.reduce_dtype = ""; }},
      {"ranks", [](CompiledPlan& p) { p.unit_settings.ranks = 1; }},
      {"gradient_scale", [](CompiledPlan& p) { p.gradient_scale = 1; }},
      {"kept", [](CompiledPlan& p) { EachStep(p, StepKind::kRecompute, [](ModuleStep& s) { s.kept.reset(); }); }},
      {"dtype", [](CompiledPlan& p) { ProgramAt(p, "layer_0.up").dtype = "float64"; }},
      {"sums",
       [](CompiledPlan& p) {
         for (ModuleSteps& steps : p.steps) steps.sums.clear();
       }},
  };
  for (const auto& [field, change] : rows) {
    INFO(field);
    const std::vector<RankFailure> failures = RunRanksFailing("dp=2,tp=2", [&change = change](DeviceMesh& mesh) {
      RunWith(
          mesh, mesh.rank() == 3 ? change : [](CompiledPlan&) {});
    });
    CHECK(failures.size() == 4);
    for (const RankFailure& failure : failures) CHECK(failure.text.find("MS0502") != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard::test
