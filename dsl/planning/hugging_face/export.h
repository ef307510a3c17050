// Export: a compiled plan in the forms of other systems, for the same model. What a form cannot express is reported and
// omitted: a plan with such findings does not do the same as the original.
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
  Diagnostics
      findings;  // kNotSupported, one a rule: errors for what is omitted, warnings for what has a weaker meaning there
};

// A tp_plan cannot express layers that are sharded in different ways.
ExportedPlan ExportHuggingFace(const CompiledPlan& plan);

ExportedPlan ExportTorch(const CompiledPlan& plan);

}  // namespace moonshard
