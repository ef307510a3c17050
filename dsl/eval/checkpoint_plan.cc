#include "dsl/eval/checkpoint_plan.h"

namespace moonshard {
namespace {

constexpr const char* kField = "base_model_tp_plan";

}  // namespace

Result<std::optional<Plan>> PlanOfCheckpoint(const PlanInputs& inputs) {
  const JsonValue* plan = inputs.config.Find(kField);
  if (plan == nullptr || !plan->is_object() || plan->AsObject().empty()) return std::optional<Plan>();
  Diagnostic d = MakeDiagnostic(Finding::kPlanFallback, "the checkpoint's own Hugging Face plan is not used");
  d.declared = std::string(kField) + " in config.json, " + std::to_string(plan->AsObject().size()) + " rules";
  d.help = "its styles are not read yet: write the same rules as a plan file and name it with --plan";
  return {std::optional<Plan>(), Diagnostics{std::move(d)}};
}

}  // namespace moonshard
