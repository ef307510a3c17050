// PlanJson: writes a plan with its diagnostics as JSON and reads it back without loss. Processes send plans to each
// other in this form (dsl/language/eval/isolated.h). The form is not a contract: only the version that wrote it reads
// it.
//
//   plan == ReadPlanJson(PlanJson(plan), "name").value()    for every plan
//
// The JSON is untrusted: the reader checks the range of every number, and a value that no plan file can express is an
// error.
#pragma once

#include <optional>
#include <string>

#include "engine/core/base/json.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

JsonValue PlanJson(const Plan& plan);
// Errors: kBadJson, which names the member that is missing, of another type or out of range; an object with unknown
// members is an error too. `name` is the file name in errors.
Result<Plan> ReadPlanJson(const JsonValue& json, const std::string& name);

// The result of an evaluation: the plan, nullopt if the evaluation failed, and all diagnostics.
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
