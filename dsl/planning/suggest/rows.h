// Rows: shards linear layers whose use is not understood. Each rank owns a shard of the rows of the weight and computes
// the output features of these rows, and the outputs are gathered. Every module that reads the output therefore gets
// the full output, so the result is right for any use of the output. Compared with a replicated layer, this saves
// memory and costs an all-gather. So are tables of positions and types, by their columns, and convolutions with one
// group, by their output channels.
// Stage before: layer.h, ends.h. Stage after: write.h.
#pragma once

#include <string>

#include "dsl/planning/suggest/outline.h"
#include "dsl/planning/suggest/write.h"

namespace moonshard {

// Whether the replicated modules of a stack include some that can be sharded in this way.
bool HasRows(const ModuleTree& tree, const Outline& outline, const ReadStack& read);

// Shards these modules of the draft, except those in Draft::whole. Call it after the
// layouts of tied tensors are decided (suggest.cc).
void ShardRows(const ModuleTree& tree, const Outline& outline, Draft& draft);

// The path of a module as in Draft::whole, with a * for the number of the layer in a stack. `stack`: null for a module
// outside of the stacks.
std::string PathIn(const Stack* stack, const std::string& name);

}  // namespace moonshard
