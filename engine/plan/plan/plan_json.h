// PlanJson: a plan with its diagnostics as JSON and back, without loss. How a plan is sent between processes
// (dsl/language/eval/isolated.h); not meant for reading, and compatible only with the version that wrote it.
//
//   plan == ReadPlanJson(PlanJson(plan), "name").value()    for every plan
//
// The JSON is not trusted: every number is checked against the range of its meaning, and what no plan file can express
// is an error.
#pragma once

#include <optional>
#include <string>

#include "engine/core/base/json.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

JsonValue PlanJson(const Plan& plan);
// Errors: kBadJson, naming the member that is missing, unknown, of another kind or out of range. `name` names the JSON
// in errors.
Result<Plan> ReadPlanJson(const JsonValue& json, const std::string& name);

// The result of an evaluation: a plan, or none, and all diagnostics.
struct EvaluatedPlan {
  std::optional<Plan> plan;
  Diagnostics diagnostics;
};
JsonValue EvaluatedPlanJson(const EvaluatedPlan& evaluated);
// Errors: as ReadPlanJson.
Result<EvaluatedPlan> ReadEvaluatedPlanJson(const JsonValue& json, const std::string& name);

JsonValue SpanJson(const SourceSpan& span);
// Errors: as ReadPlanJson.
Result<SourceSpan> ReadSpanJson(const JsonValue& json, const std::string& name);

}  // namespace moonshard
