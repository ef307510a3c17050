// Suggest: a first plan for a model without one, from its module tree and config.json. A block on which names, shapes
// and config agree is "sure", one with another possible reading is a "guess", and an unrecognized one is replicated; a
// comment at each rule states which. The plan is a file to edit: `check` has no errors for it, but only a
// comparison of numbers (`verify`, or in the trainer) shows whether the guesses are right. Which projection a block
// ends with is read from the data flow of a tree that has it (an exported program's), and inferred from names and
// shapes else.
// Stage before: safetensors headers, config.json. Stage after: a plan file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/io/config/config.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

struct Suggestion {
  std::string text;  // of the plan file
  // Blocks of modules (attention, a feed-forward block, norms, an end of the model), by certainty.
  int64_t sure = 0;
  int64_t guesses = 0;
  int64_t full = 0;         // not understood: replicated, or the rows of linear layers
  std::string no_sequence;  // why the plan has no option sequence_parallel
};

// The errors of a plan text, whose places are in a file of the name kSuggestedFile; none if the plan is good.
// `sequence`: with the option sequence_parallel, which it declares.
using FindErrors = std::function<Diagnostics(const std::string& text, bool sequence)>;
inline constexpr const char* kSuggestedFile = "suggested.lua";

// The least certain blocks that are sharded.
enum class Certainty {
  kGuess,  // as one reading has it, where there are others
  kSure,   // guesses stay replicated, and their comments say what they would have been
};

// `tree` of headers or of a live model. A model without recognized modules is not an error: everything is replicated.
// With `errors_of`, blocks whose rules have errors are left replicated, with the first error as the reason, until there
// are none:
// of what is suggested then, `errors_of` finds errors only where it does so with every module replicated. If only
// sequence parallelism has errors, it is not offered.
Suggestion SuggestPlan(const ModuleTree& tree, const ModelConfig& config, const FindErrors& errors_of = nullptr,
                       Certainty least = Certainty::kGuess);

}  // namespace moonshard
