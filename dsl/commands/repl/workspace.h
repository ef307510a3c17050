// Workspace: the state of a session: a model, a plan, a mesh, the options of the plan, the current rank, and the result
// of resolving the plan. A plan with errors stays the current plan, so that it can be debugged. Stage before:
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
  std::string folder;   // a model directory, or an exported program
  std::string program;  // the exported program that --program names; "": none
  JsonValue config;
  std::shared_ptr<const ModuleTree> tree;
  PathIndex paths;
};

class Workspace {
 public:
  // Reads config and headers of a model directory, and replaces the current model; on failure the current model is
  // kept. `program`: an exported program of the model, whose modules are used then; "": none, or `folder` is itself a
  // program.
  Diagnostics OpenModel(const std::string& folder, const std::string& program = "");
  // For tests and embedders: sets the model from an existing tree, without a program.
  void SetModel(std::string folder, JsonValue config, std::shared_ptr<const ModuleTree> tree);
  // Set another plan (as ModelOptions::plan), mesh or option. The next Resolve uses them.
  void SetPlan(std::string plan) { plan_name_ = std::move(plan); }
  Diagnostics SetMesh(const std::string& text);
  void SetOption(const std::string& name, std::optional<std::string> value);
  // Whether plans are evaluated in a child process (dsl/language/eval/isolated.h). Lines of Lua always run in this
  // process.
  void SetIsolate(bool isolate) { isolate_ = isolate; }
  // Errors if the mesh has no such rank.
  Diagnostics SetRank(int64_t rank);

  // Reads and resolves the plan again. Without a model, a named plan is only evaluated; without a model and without a
  // named plan, nothing is done. If the old plan compiled, it is kept for previous().
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
  // The last plan that compiled before the current one, on the same model; nullptr if there is none.
  const CompiledPlan* previous() const { return previous_ ? &*previous_ : nullptr; }
  // Totals (TotalsOf) of the current compiled plan, which must exist, for the current rank; and of previous().
  const PlanTotals& totals();
  const PlanTotals& previous_totals();

  // The inputs of plans in this workspace; their `record` is null.
  PlanInputs Inputs() const;
  // Resolves another plan with the same inputs; a model must be loaded.
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
