// Suggest: a first plan for a model that no plan is for, from its module tree and config.json alone. What follows from
// names, shapes and config together is "sure", what could be otherwise a "guess", and what nobody can tell stays whole;
// the plan says so at each rule. It is a file for a person to go on from: `check` has no errors for it, but only numbers
// (`verify`, or a comparison in the trainer) tell whether the guesses are right.
// Stage before: safetensors headers, config.json. Stage after: a plan file.
#pragma once

#include <cstdint>
#include <string>

#include "engine/io/config/config.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

struct Suggestion {
  std::string text;  // of the plan file
  // Blocks of modules (attention, a feed-forward block, norms, an end of the model), by how much is known of them.
  int64_t sure = 0;
  int64_t guesses = 0;
  int64_t full = 0;
};

// `tree` as of headers or of a live model. Nothing is wrong with a model that nobody understands: then all stays whole.
Suggestion SuggestPlan(const ModuleTree& tree, const ModelConfig& config);

}  // namespace moonshard
