// Rows: shards linear layers whose use is not understood. Every module that reads the output of such a layer gets the
// full output, so the layer can be computed in shards: each rank holds a part of the rows of the weight, and the
// outputs are gathered. The result is right for any use of the output. It costs an all-gather, where a replicated layer
// costs memory.
// Stage before: layer.h, ends.h. Stage after: write.h.
#pragma once

#include <string>

#include "dsl/planning/suggest/outline.h"
#include "dsl/planning/suggest/write.h"

namespace moonshard {

// Whether the replicated modules of a stack include such linear layers.
bool HasRows(const ModuleTree& tree, const Outline& outline, const ReadStack& read);

// Shards the rows of such linear layers in the draft that are replicated, except those in Draft::whole. The tied
// tensors of the draft must be settled (suggest.cc).
void ShardRows(const ModuleTree& tree, const Outline& outline, Draft& draft);

// The path of a module as in Draft::whole, with a * for the number of the layer in a stack. `stack`: null for a module
// outside of the stacks.
std::string PathIn(const Stack* stack, const std::string& name);

}  // namespace moonshard
