// A plan as JSON, as a child process may have written it (dsl/language/eval/isolated.h): what is accepted is the same
// when it is written again, and goes the way of any plan.
#include "engine/plan/plan/plan_json.h"

#include <memory>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/plan/explain/explain.h"
#include "tests/dsl/inputs.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  static const auto tree = std::make_shared<const ModuleTree>(SmallLlama());
  const Result<JsonValue> json = ParseJson(fuzz::TextOf(data, size), "fuzz.json");
  if (!json.ok()) return 0;
  const Result<EvaluatedPlan> evaluated = ReadEvaluatedPlanJson(json.value(), "fuzz.json");
  if (evaluated.ok()) ToText(evaluated.value().diagnostics);
  const Result<Plan> plan = ReadPlanJson(json.value(), "fuzz.json");
  if (!plan.ok()) return 0;
  const JsonValue written = PlanJson(plan.value());
  fuzz::Require(written == json.value(), "the plan is another one when it is written again");
  const Resolution resolved =
      RunPasses(std::make_shared<const Plan>(plan.value()), tree, MeshShape::Parse("tp=2").ValueOrThrow());
  if (resolved.compiled) ExplainText(*resolved.compiled, {});
  return 0;
}
