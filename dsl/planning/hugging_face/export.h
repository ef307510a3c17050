// Export: writes a compiled plan in the form of another system, for the same model. A module whose layouts or
// redistributions the form cannot express is reported and omitted, so an exported plan with findings is not equivalent
// to the original.
//
//   hf      the JSON (and Python) dict of a Hugging Face tp_plan: keys with * for numbers, and names of styles
//   torch   Python source with the dict that torch.distributed.tensor.parallel.parallelize_module takes
//
// Stage before: compile (role.h).
#pragma once

#include <string>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct ExportedPlan {
  std::string text;
  // kNotSupported, one per rule and reason: an error for an omitted module, a warning for a module whose exported rule
  // has a weaker meaning.
  Diagnostics findings;
};

// A key of a tp_plan covers all layers: layers that are sharded in different ways are an error.
ExportedPlan ExportHuggingFace(const CompiledPlan& plan);

ExportedPlan ExportTorch(const CompiledPlan& plan);

}  // namespace moonshard
