#include "dsl/cli/resolve.h"

#include "dsl/eval/choose_plan.h"
#include "engine/compile/compile.h"
#include "engine/compile/mostly_whole.h"
#include "engine/match/match.h"
#include "engine/safetensors/tree.h"

namespace moonshard {

Result<ModelFolder> OpenModelFolder(const ModelOptions& options, bool headers_only) {
  Diagnostics diagnostics;
  ModelFolder folder;
  HeaderOptions header_options;
  header_options.allow_header_only = headers_only;
  std::optional<MeshShape> mesh = MeshShape::Parse(options.mesh).Collect(diagnostics);
  std::optional<ModelConfig> config = ModelConfig::Read(options.model).Collect(diagnostics);
  std::optional<Checkpoint> checkpoint = Checkpoint::Open(options.model, header_options).Collect(diagnostics);
  if (!mesh || !config || !checkpoint) return diagnostics;
  return Result<ModelFolder>({std::move(*config), std::move(*checkpoint), *mesh}, std::move(diagnostics));
}

Result<CompiledPlan> ResolvePlan(const ModelOptions& options, const ModelFolder& folder,
                                 std::shared_ptr<const ModuleTree> tree) {
  Diagnostics diagnostics;
  PlanInputs inputs;
  inputs.config = folder.config.json();
  inputs.mesh = folder.mesh;
  inputs.model = tree.get();
  for (const auto& [name, value] : options.options) inputs.options[name] = value;
  std::optional<Plan> plan = ChoosePlan(options.plan, inputs).Collect(diagnostics);
  if (!plan) return diagnostics;
  std::optional<MatchedPlan> matched =
      MatchRules(std::make_shared<const Plan>(std::move(*plan)), std::move(tree)).Collect(diagnostics);
  if (!matched) return diagnostics;
  std::optional<CompiledPlan> compiled = CompilePlan(*matched, folder.mesh).Collect(diagnostics);
  if (!compiled) return diagnostics;
  if (std::optional<Diagnostic> whole = FindMostlyWhole(*compiled)) diagnostics.push_back(std::move(*whole));
  compiled->findings = diagnostics;
  return Result<CompiledPlan>(std::move(*compiled), std::move(diagnostics));
}

Result<CompiledPlan> ResolveFromHeaders(const ModelOptions& options, bool headers_only) {
  Result<ModelFolder> folder = OpenModelFolder(options, headers_only);
  if (!folder.ok()) return folder.diagnostics();
  auto tree = std::make_shared<const ModuleTree>(TreeFromCheckpoint(folder.value().checkpoint, folder.value().config));
  Diagnostics diagnostics = folder.diagnostics();
  std::optional<CompiledPlan> compiled = ResolvePlan(options, folder.value(), std::move(tree)).Collect(diagnostics);
  if (!compiled) return diagnostics;
  compiled->findings = diagnostics;
  return Result<CompiledPlan>(std::move(*compiled), std::move(diagnostics));
}

}  // namespace moonshard
