// Export: writes a compiled plan in the form of another system, for the same model:
//
//   hf      a JSON object, also a valid Python dict, of a Hugging Face tp_plan: keys with * for numbers, and names of
//           styles
//   torch   Python source with the dict that torch.distributed.tensor.parallel.parallelize_module takes
//
// Only the tp layouts of rules are exported. The sections `fsdp` and `ddp` are omitted without a finding. A module is
// reported if a rule gives it a layout on another axis, or if the form cannot express one of its tp layouts or
// redistributions; neither the module nor any of its parameters has an entry. In `hf` a key with * names the same
// module of all layers: if one of them cannot be expressed, or their styles differ, none of them has an entry, which is
// reported once for each rule and reason. So an exported plan with errors is not equivalent to the original: the
// modules without entries are replicated.
//
// Stages before: compile, role.h.
#pragma once

#include <string>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct ExportedPlan {
  std::string text;
  // kNotSupported, one per rule and reason: an error for a module that cannot be exported, a warning for a module
  // whose exported style does not always do the same as the style of the plan.
  Diagnostics findings;
};

// A key of a tp_plan covers all layers: layers that are sharded in different ways are an error.
ExportedPlan ExportHuggingFace(const CompiledPlan& plan);

ExportedPlan ExportTorch(const CompiledPlan& plan);

}  // namespace moonshard
