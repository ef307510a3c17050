#include "dsl/commands/repl/workspace.h"

#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/safetensors/tree.h"

namespace moonshard {

Diagnostics Workspace::OpenModel(const std::string& folder, const std::string& program) {
  ModelOptions options;
  options.model = folder;
  options.program = program;
  Result<ModelFolder> opened = OpenModelFolder(options, /*headers_only=*/true);
  if (!opened.ok()) return opened.diagnostics();
  const ModelFolder& model = opened.value();
  SetModel(folder, model.config.json(), std::make_shared<const ModuleTree>(TreeOf(model)));
  model_->program = program;
  return opened.diagnostics();
}

void Workspace::SetModel(std::string folder, JsonValue config, std::shared_ptr<const ModuleTree> tree) {
  PathIndex paths(*tree);
  model_ = LoadedModel{std::move(folder), "", std::move(config), std::move(tree), std::move(paths)};
  resolution_ = {};
  previous_.reset();
  totals_.reset();
  previous_totals_.reset();
}

// Setters only record inputs; Resolve is the one function that evaluates, so a command that changes several inputs
// resolves once. Totals are computed when they are first shown: they cost a pass over all modules, which most lines do
// not need.
Diagnostics Workspace::SetMesh(const std::string& text) {
  const Result<MeshShape> mesh = MeshShape::Parse(text);
  if (!mesh.ok()) return mesh.diagnostics();
  mesh_ = mesh.value();
  if (rank_ >= mesh_.world_size()) rank_ = 0;
  return mesh.diagnostics();
}

void Workspace::SetOption(const std::string& name, std::optional<std::string> value) {
  if (value) {
    options_[name] = *std::move(value);
  } else {
    options_.erase(name);
  }
}

Diagnostics Workspace::SetRank(int64_t rank) {
  if (rank < 0 || rank >= mesh_.world_size()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadArgument,
                                  "there is no rank " + std::to_string(rank) + " in mesh " + mesh_.ToString());
    d.required = "a rank from 0 to " + std::to_string(mesh_.world_size() - 1);
    return {d};
  }
  rank_ = rank;
  totals_.reset();
  previous_totals_.reset();
  return {};
}

PlanInputs Workspace::Inputs() const {
  PlanInputs inputs;
  inputs.mesh = mesh_;
  inputs.isolate = isolate_;
  if (model_) inputs.config = model_->config;
  if (model_) inputs.model = model_->tree.get();
  for (const auto& [name, value] : options_) inputs.options[name] = value;
  return inputs;
}

// Evaluates, matches and compiles again. The last plan that compiled on this model is kept, so that :reload can show
// the effect of an edit also if versions with errors came between; loading another model drops it, because layouts of
// different models cannot be compared.
void Workspace::Resolve() {
  if (resolution_.compiled) {
    previous_ = std::move(resolution_.compiled);
    previous_totals_ = totals_;
  }
  totals_.reset();
  record_ = {};
  PlanInputs inputs = Inputs();
  inputs.record = &record_;
  if (model_) {
    resolution_ = ResolveModel(plan_name_, inputs, model_->tree);
    return;
  }
  resolution_ = {};
  if (plan_name_.empty()) return;
  std::optional<Plan> plan = ChoosePlan(plan_name_, inputs).Collect(resolution_.diagnostics);
  if (plan) resolution_.plan = std::make_shared<const Plan>(*std::move(plan));
}

const PlanTotals& Workspace::totals() {
  Check(resolution_.compiled.has_value(), "totals of a plan that is not compiled");
  if (!totals_) totals_ = TotalsOf(*resolution_.compiled, rank_);
  return *totals_;
}

const PlanTotals& Workspace::previous_totals() {
  Check(previous_.has_value(), "totals of no plan");
  // Another mesh may have had fewer ranks.
  if (!previous_totals_) previous_totals_ = TotalsOf(*previous_, rank_ < previous_->mesh.world_size() ? rank_ : 0);
  return *previous_totals_;
}

Resolution Workspace::ResolveOther(const std::string& plan) const {
  Check(model_.has_value(), "a plan is resolved on a model");
  return ResolveModel(plan, Inputs(), model_->tree);
}

}  // namespace moonshard
