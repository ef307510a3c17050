// BasePath: where the base model, whose keys a config's tp_plan has, stands in a whole model ("model." in LlamaForCausalLM).
// transformers knows it from its classes; here the model's names tell.
#pragma once

#include <string>

#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

// The prefix under which the most keys of the choice's base table name a module or parameter; "" where none does, or where
// the choice has no base table. Errors (kRuleConflict): two prefixes fit equally well; both are named.
Result<std::string> FindBasePath(const HuggingFaceChoice& choice, const ModuleTree& tree);

}  // namespace moonshard
