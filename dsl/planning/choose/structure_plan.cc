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

// Tells who asks for sequence parallelism why the plan does not have it. Returns whether it is asked for.
bool AddReason(Diagnostics& found, const std::string& why) {
  bool asked = false;
  for (Diagnostic& d : found) {
    if (d.finding != Finding::kUnknownOption || d.message.find("'sequence_parallel'") == std::string::npos) continue;
    d.message =
        "the plan by structure has no option 'sequence_parallel' for this model, because it cannot shard the tokens: " +
        why;
    asked = true;
  }
  return asked;
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
  bool no_sequence = false;
  if (!plan.ok() && !suggestion.no_sequence.empty()) {
    Diagnostics found = plan.diagnostics();
    if (AddReason(found, suggestion.no_sequence)) {
      PlanInputs without = inputs;
      without.options.erase("sequence_parallel");
      const Result<Plan> full = EvaluatePlan(suggestion.text, kSuggestedFile, without);
      no_sequence = full.ok() && ShardedElements(full.value(), without) > 0;
    }
    plan = std::move(found);
  }
  return {std::move(plan), suggestion.sure, suggestion.full, no_sequence};
}

int64_t ShardedElements(const Plan& plan, const PlanInputs& inputs) {
  const Resolution resolved =
      RunPasses(std::make_shared<const Plan>(plan), TreeOfInputs(inputs), inputs.mesh, inputs.config);
  return resolved.compiled ? TotalsOf(*resolved.compiled, 0).sharded_params : -1;
}

}  // namespace moonshard
