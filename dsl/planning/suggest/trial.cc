// Ranks are tried from one upwards, so that the errors of one rank, which no mesh cures, come first.
#include "dsl/planning/suggest/trial.h"

#include <utility>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/suggest/suggest.h"

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

}  // namespace moonshard
