// Explain: writes a CompiledPlan as text and as JSON, without loading weights or starting ranks. The JSON form is a
// contract (format_version) and byte-stable: keys are sorted, and no value depends on time or addresses.
// Stage before: compile.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/cost.h"

namespace moonshard {

struct ExplainOptions {
  int64_t rank = 0;                     // the rank whose local shapes and bytes are shown
  std::optional<Tokens> tokens;         // batch and sequence of the full input; nullopt: FewestTokens
  std::vector<std::string> notes = {};  // of the exporter of the model (Resolution::notes)
  JsonValue exported = {};              // how the model was exported (Resolution::exported)
};

inline constexpr const char* kExplainFormatVersion = "1.0";

// Returns {"format_version", "plan", "plan_hash", "mesh", "rank", "rules", "modules", "program", "totals", "findings"},
// "units" if the plan has units, "notes" if there are notes, "exported" if the model is an exported program, and "flow"
// if the data flow of the model is known (ModuleTree::flow): a list of {"from", "through", "to"}, the texts of
// DataFlow. A plan with adapters has "adapters", one entry for each `lora` section that applies to modules, in the
// order of the plan: {"name", "active", "settings": {"rank", "alpha", "dropout", "rslora", "dtype" (null: default)},
// "modules"}. Rules are numbered from 0. "modules" lists every module that owns parameters or that a rule claims.
JsonValue ExplainJson(const CompiledPlan& plan, const ExplainOptions& options);

// Returns the plan as text, without findings. First the modules, each with its source line, the modules that feed it
// (if the data flow is known), redistributions, layouts and local shapes; modules with equal layouts whose paths differ
// only in numbers are one entry ("layers.{0..31}"). Then tied parameters, fsdp units, the steps (ProgramText), the
// totals, how an exported program was exported, and the notes.
std::string ExplainText(const CompiledPlan& plan, const ExplainOptions& options);

// StepsAsJson and ProgramText return only the steps around the calls of modules (compile/module_steps.h), with one
// entry for modules as above, and the process groups and gradient sums. The JSON also has the number of ddp's buckets
// and the scale of gradients: {"order", "modules", "groups", "sums", "buckets", "gradient_scale"}.
JsonValue StepsAsJson(const CompiledPlan& plan);
std::string ProgramText(const CompiledPlan& plan);

// Returns {"forward": {collective: {"count", "bytes"}}, "backward": likewise}; --stats prints the same form.
JsonValue ToJson(const CollectiveCounts& counts);

}  // namespace moonshard
