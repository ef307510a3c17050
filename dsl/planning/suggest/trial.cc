// Ranks are tried from one upwards, so that the errors of one rank, which no mesh cures, come first.
#include "dsl/planning/suggest/trial.h"

#include <algorithm>
#include <utility>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/suggest/suggest.h"
#include "engine/plan/compile/cost.h"

namespace moonshard {

Resolution TrySuggestion(const std::string& text, const PlanInputs& inputs,
                         const std::shared_ptr<const ModuleTree>& tree, int64_t ranks, bool sequence) {
  PlanInputs own;
  own.config = inputs.config;
  own.mesh = MeshShape::Parse("tp=" + std::to_string(ranks)).ValueOrThrow();
  own.model = tree.get();
  if (sequence) own.options["sequence_parallel"] = true;
  Result<Plan> plan = EvaluatePlan(text, kSuggestedFile, own);
  if (!plan.ok()) {
    Resolution failed;
    failed.diagnostics = plan.diagnostics();
    return failed;
  }
  return RunPasses(std::make_shared<const Plan>(std::move(plan).value()), tree, own.mesh, own.config);
}

Diagnostics ErrorsOnAnyMesh(const std::string& text, const PlanInputs& inputs,
                            const std::shared_ptr<const ModuleTree>& tree, bool sequence) {
  Diagnostics errors;
  for (int64_t ranks = 1; ranks <= kMostTriedRanks; ++ranks) {
    Resolution tried = TrySuggestion(text, inputs, tree, ranks, sequence);
    if (tried.compiled && ranks > 1) return {};
    if (tried.compiled || !errors.empty()) continue;
    std::erase_if(tried.diagnostics, [&](const Diagnostic& d) {
      return d.severity != Severity::kError ||
             (ranks > 1 && (d.finding == Finding::kDoesNotDivide || d.finding == Finding::kHeadsDoNotFit));
    });
    errors = std::move(tried.diagnostics);
    if (ranks == 1) return errors;
  }
  return errors;
}

// The ranks of cp beside rank 0 of the other axes: what is sent for attention does not depend on the place on them.
Result<int64_t> SentInContext(const std::string& text, const PlanInputs& inputs,
                              const std::shared_ptr<const ModuleTree>& tree, const MeshShape& mesh) {
  PlanInputs own;
  own.config = inputs.config;
  own.mesh = mesh;
  own.model = tree.get();
  Result<Plan> plan = EvaluatePlan(text, kSuggestedFile, own);
  if (!plan.ok()) return plan.diagnostics();
  Resolution resolution = RunPasses(std::make_shared<const Plan>(std::move(plan).value()), tree, own.mesh, own.config);
  std::erase_if(resolution.diagnostics, [](const Diagnostic& d) { return d.severity != Severity::kError; });
  if (!resolution.compiled || !resolution.diagnostics.empty()) return resolution.diagnostics;
  const int64_t ranks = mesh.size(MeshAxis::kCp);
  int64_t most = 0;
  for (const int64_t rank : mesh.GroupOf(0, MeshAxis::kCp)) {
    int64_t sent = 0;
    for (const PlannedCollective& one : CollectivesOf(*resolution.compiled, rank, {1, kContextTokens})) {
      if (one.kind != CollectiveKind::kAllToAll) continue;
      if (one.of == PlannedCollective::Of::kRing) sent += one.bytes;
      if (one.of == PlannedCollective::Of::kInput || one.of == PlannedCollective::Of::kOutput)
        sent += one.bytes * (ranks - 1) / ranks;
    }
    most = std::max(most, sent);
  }
  return most;
}

}  // namespace moonshard
