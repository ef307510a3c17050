#include "tests/parity/setup.h"

#include <algorithm>
#include <utility>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/config/config.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/plan/compile/module_steps.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {

std::string Setup::Name() const {
  return folder.filename().string() + " tp=" + std::to_string(tp) + (sequence_parallel ? " sequence parallel" : "") +
         (expert_parallel ? " expert parallel" : "");
}

std::vector<std::filesystem::path> ProgramFolders() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(SourcePath("tests/parity/programs"))) {
    if (std::filesystem::exists(entry.path() / "program.pt2")) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

ShardedModel Load(const Setup& setup, const DeviceMesh& mesh, const std::function<void(CompiledPlan&)>& change) {
  const JsonValue config = ReadConfig(setup.folder);
  ShardedModel out;
  {
    const nn::DeferInit defer;
    out.model = MakeCausalLm(config).ValueOrThrow();
  }
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  const LiveTree live = ReadLiveTree(*out.model.module).ValueOrThrow();
  inputs.model = live.tree.get();
  inputs.options["sequence_parallel"] = setup.sequence_parallel;
  if (setup.expert_parallel) inputs.options["expert_parallel"] = true;
  if (setup.loss_parallel) inputs.options["loss_parallel"] = true;
  Plan plan = LoadPlanFile(SelectPlan(config).ValueOrThrow(), inputs).ValueOrThrow();
  if (setup.more) setup.more(plan);
  if (mesh.shape().size(MeshAxis::kDpShard) > 1 && !plan.data_parallel) {
    plan.data_parallel.emplace();
    plan.data_parallel->shards = false;
  }
  CompiledPlan compiled =
      ResolvePlan(std::make_shared<const Plan>(std::move(plan)), live.tree, mesh.shape()).ValueOrThrow();
  if (change) {
    change(compiled);
    CompileSteps(compiled);
  }
  out.applied = AppliedPlan::Apply(live, std::move(compiled), mesh, {.deferred_type = setup.dtype});
  const Checkpoint checkpoint = Checkpoint::Open(setup.folder.string()).ValueOrThrow();
  Expect(LoadCheckpoint(*out.applied, checkpoint).empty(), "the checkpoint fits without a warning");
  return out;
}

std::vector<Setup> SetupsAt(const std::filesystem::path& folder, const JsonValue& config, int64_t tp) {
  std::vector<Setup> out;
  for (const bool sequence_parallel : {false, true}) {
    out.push_back({folder, tp, sequence_parallel, false});
    if (config.Find("num_experts_per_tok") != nullptr) out.push_back({folder, tp, sequence_parallel, true});
  }
  return out;
}

std::vector<Setup> Setups() {
  std::vector<Setup> out;
  for (const std::filesystem::path& folder : ParityFolders()) {
    const JsonValue config = ReadConfig(folder);
    const int64_t heads = config.Find("num_attention_heads")->AsInt();
    for (int64_t tp = 1; tp <= heads; tp *= 2) {
      for (Setup& setup : SetupsAt(folder, config, tp)) out.push_back(std::move(setup));
    }
  }
  return out;
}

}  // namespace moonshard::test
