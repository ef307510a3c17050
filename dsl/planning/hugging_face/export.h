// Export: a compiled plan in the forms of other systems, for the same model. What they have no words for is said and left
// out: a plan with such findings does not do what ours does.
//
//   hf      the JSON (and Python) dict of a Hugging Face tp_plan: keys with * for numbers, names of styles
//   torch   Python source with the dict that torch.distributed.tensor.parallel.parallelize_module takes
//
// Stage before: compile (role.h).
#pragma once

#include <string>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct ExportedPlan {
  std::string text;
  Diagnostics findings;  // kNotSupported, one a rule: errors for what is left out, warnings for what means less there
};

// Layers that are sharded in different ways cannot be told apart in a tp_plan.
ExportedPlan ExportHuggingFace(const CompiledPlan& plan);

ExportedPlan ExportTorch(const CompiledPlan& plan);

}  // namespace moonshard
