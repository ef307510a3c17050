// Rows: linear layers whose use is not understood. Whatever reads the outputs of one gets all of them, so they may be
// computed in shards: each rank holds a part of the rows, and the outputs are gathered. That is right for any use of
// the layer's call, and costs an all-gather where a replicated layer costs memory.
// Stage before: layer.h, ends.h. Stage after: write.h.
#pragma once

#include <string>

#include "dsl/planning/suggest/outline.h"
#include "dsl/planning/suggest/write.h"

namespace moonshard {

// Whether a stack without anything that is understood has such layers.
bool HasRows(const ModuleTree& tree, const Outline& outline, const ReadStack& read);

// Shards the rows of those in the draft that are replicated, except `whole`. Its ties must be settled.
void ShardRows(const ModuleTree& tree, const Outline& outline, Draft& draft);

// A module's path, in a stack with a * for the layer: the names of Draft::whole. `stack`: null outside of the stacks.
std::string PathIn(const Stack* stack, const std::string& name);

}  // namespace moonshard
