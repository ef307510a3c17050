// Explain: a CompiledPlan as text and as JSON, without weights or ranks. The JSON form is a contract (format_version)
// and byte-stable: sorted keys, nothing that depends on time or addresses.
// Stage before: compile.
#pragma once

#include <optional>
#include <string>

#include "engine/core/base/json.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/cost.h"

namespace moonshard {

struct ExplainOptions {
  int64_t rank = 0;              // whose local shapes and bytes are shown
  std::optional<Tokens> tokens;  // of the full input; none: see TotalsOf
};

inline constexpr const char* kExplainFormatVersion = "1.0";

// {"format_version", "plan", "plan_hash", "mesh", "rank", "rules", "modules", "program", "totals", "findings"}: rules
// count from 0; every module that owns parameters or is claimed by a rule is listed.
JsonValue ExplainJson(const CompiledPlan& plan, const ExplainOptions& options);

// The same as a page of text: modules that differ only in numbers are folded to one entry ("layers.{0..31}") with its
// source line, layouts, local shapes and redistributions; then totals.
std::string ExplainText(const CompiledPlan& plan, const ExplainOptions& options);

// The steps around calls of modules alone (compile/module_steps.h), folded as above, with groups and sums of gradients.
// {"order", "modules", "groups", "sums", "buckets", "gradient_scale"}.
JsonValue StepsAsJson(const CompiledPlan& plan);
std::string ProgramText(const CompiledPlan& plan);

// {"count", "bytes"} by collective for "forward" and "backward"; also what --stats prints.
JsonValue ToJson(const CollectiveCounts& counts);

}  // namespace moonshard
