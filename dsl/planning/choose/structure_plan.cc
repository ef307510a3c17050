#include "dsl/planning/choose/structure_plan.h"

#include <memory>
#include <string>
#include <utility>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/suggest/suggest.h"
#include "dsl/planning/suggest/trial.h"
#include "engine/io/config/config.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/resolve/resolve_plan.h"

namespace moonshard {
namespace {

// The tree of the inputs, which outlives what is made here.
std::shared_ptr<const ModuleTree> TreeOfInputs(const PlanInputs& inputs) {
  return {std::shared_ptr<void>(), inputs.model};
}

// Tells who asks for sequence parallelism why the plan does not have it.
Diagnostics WithReason(Diagnostics found, const std::string& why) {
  for (Diagnostic& d : found) {
    if (d.finding != Finding::kUnknownOption || d.message.find("'sequence_parallel'") == std::string::npos) continue;
    d.message =
        "the plan by structure has no option 'sequence_parallel' for this model, because it cannot shard the tokens: " +
        why;
  }
  return found;
}

}  // namespace

StructurePlan ReadStructure(const PlanInputs& inputs) {
  const std::shared_ptr<const ModuleTree> tree = TreeOfInputs(inputs);
  const ModelConfig config(inputs.config.is_object() ? inputs.config.AsObject() : JsonValue::Object());
  const Suggestion suggestion = SuggestPlan(
      *tree, config,
      [&](const std::string& text, bool sequence) {
        // Its errors are shown to who asks for it.
        return sequence ? Diagnostics() : ErrorsOnAnyMesh(text, inputs, tree, sequence);
      },
      Certainty::kSure);
  Result<Plan> plan = EvaluatePlan(suggestion.text, kSuggestedFile, inputs);
  if (!plan.ok() && !suggestion.no_sequence.empty()) plan = WithReason(plan.diagnostics(), suggestion.no_sequence);
  return {std::move(plan), suggestion.sure, suggestion.full};
}

int64_t ShardedElements(const Plan& plan, const PlanInputs& inputs) {
  const Resolution resolved =
      RunPasses(std::make_shared<const Plan>(plan), TreeOfInputs(inputs), inputs.mesh, inputs.config);
  return resolved.compiled ? TotalsOf(*resolved.compiled, 0).sharded_params : -1;
}

}  // namespace moonshard
