// Suggest: a first plan for a model without one, from its module tree and config.json. A block on which names, shapes
// and config agree is "sure", one with another possible reading is a "guess", and an unrecognized one is replicated; a
// comment at each rule states which. The plan is a file to edit: `check` has no errors for it, but only a
// comparison of numbers (`verify`, or in the trainer) shows whether the guesses are right. Stage before: safetensors
// headers, config.json. Stage after: a plan file.
#pragma once

#include <cstdint>
#include <string>

#include "engine/io/config/config.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

struct Suggestion {
  std::string text;  // of the plan file
  // Blocks of modules (attention, a feed-forward block, norms, an end of the model), by certainty.
  int64_t sure = 0;
  int64_t guesses = 0;
  int64_t full = 0;
};

// `tree` of headers or of a live model. A model without recognized modules is not an error: everything is replicated.
Suggestion SuggestPlan(const ModuleTree& tree, const ModelConfig& config);

}  // namespace moonshard
