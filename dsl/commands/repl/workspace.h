// Workspace: the subject of a session: a model, a plan, a mesh, the options of the plan and the current rank, and the
// plan as far as it resolves. A plan with errors stays the current one, so that it can be debugged. Stage before:
// dsl/planning/resolve_model. Used by the commands (command.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsl/commands/repl/path_index.h"
#include "dsl/language/bind/plan_inputs.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/plan/compile/cost.h"

namespace moonshard {

struct LoadedModel {
  std::string folder;
  JsonValue config;
  std::shared_ptr<const ModuleTree> tree;
  PathIndex paths;
};

class Workspace {
 public:
  // Reads config and headers of a model directory in place of the current model. On failure the current one is kept.
  // `program`: an exported program of it, whose modules are taken then; "": none, or `folder` is one itself.
  Diagnostics OpenModel(const std::string& folder, const std::string& program = "");
  // For tests and embedders: an existing tree.
  void SetModel(std::string folder, JsonValue config, std::shared_ptr<const ModuleTree> tree);
  // Takes another plan (as ModelOptions::plan), mesh or option; Resolve then reports the result.
  void SetPlan(std::string plan) { plan_name_ = std::move(plan); }
  Diagnostics SetMesh(const std::string& text);
  void SetOption(const std::string& name, std::optional<std::string> value);
  // Plans are evaluated in a child process (dsl/language/eval/isolated.h); interactive lines are not.
  void SetIsolate(bool isolate) { isolate_ = isolate; }
  // Errors if the mesh has no such rank.
  Diagnostics SetRank(int64_t rank);

  // Reads and resolves the plan anew; with no model its evaluation alone, with neither nothing. The compiled plan of
  // before is kept for previous().
  void Resolve();

  const LoadedModel* model() const { return model_ ? &*model_ : nullptr; }
  const std::string& plan_name() const { return plan_name_; }
  const MeshShape& mesh() const { return mesh_; }
  const std::map<std::string, std::string>& options() const { return options_; }
  bool isolate() const { return isolate_; }
  int64_t rank() const { return rank_; }
  const EvaluationRecord& record() const { return record_; }  // of the last evaluation

  const Resolution& resolution() const { return resolution_; }
  const Plan* plan() const { return resolution_.plan.get(); }
  const CompiledPlan* compiled() const { return resolution_.compiled ? &*resolution_.compiled : nullptr; }
  // The last plan that compiled before the current one, on the same model; nullptr where there is none.
  const CompiledPlan* previous() const { return previous_ ? &*previous_ : nullptr; }
  // TotalsOf the current compiled plan, which must be there, for the current rank.
  const PlanTotals& totals();
  const PlanTotals& previous_totals();

  // The inputs of plans in this workspace; their `record` is null.
  PlanInputs Inputs() const;
  // Another plan under the same inputs.
  Resolution ResolveOther(const std::string& plan) const;

 private:
  std::optional<LoadedModel> model_;
  std::string plan_name_;
  MeshShape mesh_;
  std::map<std::string, std::string> options_;
  bool isolate_ = false;
  int64_t rank_ = 0;
  EvaluationRecord record_;
  Resolution resolution_;
  std::optional<CompiledPlan> previous_;
  std::optional<PlanTotals> totals_;
  std::optional<PlanTotals> previous_totals_;
};

}  // namespace moonshard
