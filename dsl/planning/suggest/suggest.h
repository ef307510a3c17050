// Suggest: writes a first plan for a model without a plan, from its module tree and config.json. A block on which
// names, shapes and config agree is "sure", a block with another possible reading is a "guess", and an unrecognized
// block is replicated; a comment at each rule states the certainty. The plan is a file to edit. `check` reports no
// errors for the plan, but only a comparison with an unsharded run (`verify`, or a training run) shows whether the
// guesses are right. If the tree has a data flow (the model is an exported program), the output projection of a block
// is read from the flow, else it is inferred from names and shapes.
// Stage before: safetensors headers, config.json. Stage after: a plan file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/result.h"
#include "engine/io/config/config.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

struct Suggestion {
  std::string text;  // of the plan file
  // Blocks of modules (attention, a feed-forward block, norms, an end of the model), by certainty.
  int64_t sure = 0;
  int64_t guesses = 0;
  int64_t full = 0;         // not understood: replicated, or linear layers that are sharded by rows
  std::string no_sequence;  // why the plan has no option sequence_parallel
  std::string context;      // "ulysses", "ring" or "ulysses_ring", the default of its option `context`; "": it has none
  std::string no_context;   // why not, if it was asked for
};

// Returns the errors of the plan with this text, or none if the plan is valid. The source locations of the errors are
// in the file kSuggestedFile. `sequence`: whether the plan is evaluated with its option sequence_parallel.
using FindErrors = std::function<Diagnostics(const std::string& text, bool sequence)>;
inline constexpr const char* kSuggestedFile = "suggested.lua";

// The least certainty with which a block is sharded.
enum class Certainty {
  kGuess,  // a block with several possible readings is sharded by one of them
  kSure,   // guesses stay replicated, and their comments state the possible reading
};

// The sequence for which bytes are compared: all of them grow with its length, but for those of a ring within a window.
inline constexpr int64_t kContextTokens = 32768;

// What a suggestion with context parallelism is made for.
struct ContextRequest {
  std::string mesh;  // "cp=4,tp=2", for the comment
  // "ulysses", "ring" or "ulysses_ring"; "": "ulysses_ring" if two_factors; otherwise "ring" if "ulysses" is not
  // possible, or if a rank sends at most half of its bytes on a ring, else "ulysses", which any attention supports,
  // also with a fused kernel
  std::string wanted;
  // Returns the bytes that the rank that sends the most sends for attention in a step of one sequence of kContextTokens
  // tokens, of the plan with this text; or the errors of that plan on the mesh. Empty: the plan has no context
  // parallelism.
  std::function<Result<int64_t>(const std::string& text)> sent;
  bool two_factors = false;  // the mesh has two factors of cp, as in cp=2x2
};

// `tree` is made from headers or from a live model. A model without recognized modules is not an error: everything is
// replicated. With `errors_of`, blocks whose rules have errors are replicated, with the first error as the reason,
// until `errors_of` finds no more errors or nothing is sharded. If only sequence parallelism has errors, the plan does
// not have the option sequence_parallel. `context`: what context parallelism is chosen for; by default the plan has
// none.
Suggestion SuggestPlan(const ModuleTree& tree, const ModelConfig& config, const FindErrors& errors_of = nullptr,
                       Certainty least = Certainty::kGuess, const ContextRequest& context = {});

}  // namespace moonshard
