// A plan as JSON and back, whole: rules, sections and source lines, and the diagnostics that go with it. How a plan
// travels between processes (dsl/language/eval/isolated.h); not a form for people, and read by the version that wrote it only.
//
//   plan == ReadPlanJson(PlanJson(plan), "name").value()    for every plan
//
// What is read is not trusted: each number is held to what a layout or a rule can be, and what a plan file could not have
// said is an error rather than a plan.
#pragma once

#include <optional>
#include <string>

#include "engine/core/base/json.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

JsonValue PlanJson(const Plan& plan);
// Errors: kBadJson, naming the member that is missing, too much, of another kind or out of range. `name` is what the
// error calls the text.
Result<Plan> ReadPlanJson(const JsonValue& json, const std::string& name);

// What an evaluation came to: a plan, or none, and everything that there was to say.
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
