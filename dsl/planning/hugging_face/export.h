// Export: writes a compiled plan in the form of another system, for the same model:
//
//   hf      a JSON object, also a valid Python dict, of a Hugging Face tp_plan: keys with * for numbers, and names of
//           styles
//   torch   Python source with the dict that torch.distributed.tensor.parallel.parallelize_module takes
//
// Only layouts on tp are exported: fsdp and ddp are omitted without a finding. A module whose tp layouts or
// redistributions the form cannot express is reported; neither the module nor any of its parameters has an entry. In
// `hf` a key with * names the same module of all layers: if one of them cannot be expressed, or their styles differ,
// all of them are reported and have no entry. So an exported plan with errors is not equivalent to the original: the
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
