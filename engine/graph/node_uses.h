// NodeUses: which results of a program need a node.
// Stage before: engine/io/exported_program. Stages after: local_sizes.h, engine/models/program/trial.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/io/exported_program/exported_program.h"

namespace moonshard {

enum class NodeUse : uint8_t {
  kNothing,  // no output of the program depends on the node's results
  kLoss,     // only the output "loss" does
  kOutputs,
};

// Returns the use of each node of the graph. What a node that changes a tensor or chooses a branch reads counts as used.
std::vector<NodeUse> NodeUsesOf(const ExportedProgram& program);

}  // namespace moonshard
