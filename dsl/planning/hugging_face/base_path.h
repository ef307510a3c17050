// BasePath: the path of the base model, which the keys of a config's tp_plan are relative to, within the full model
// ("model." in LlamaForCausalLM). transformers has it from its classes; here it is derived from the module names.
#pragma once

#include <string>

#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

// The prefix under which the most keys of the choice's base table name a module or parameter; "" where none does, or where
// the choice has no base table. Errors (kRuleConflict): two prefixes fit equally well; both are named.
Result<std::string> FindBasePath(const HuggingFaceChoice& choice, const ModuleTree& tree);

}  // namespace moonshard
