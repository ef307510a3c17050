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

// Whether the operator writes its first operand, by its name: "aten::add_", "aten::__ior__".
bool WritesOperand(const ProgramNode& node);

// Returns the use of each node of the graph. A node that writes a tensor counts as used by the outputs, and so does
// what a node reads that writes a tensor or chooses a branch.
std::vector<NodeUse> NodeUsesOf(const ExportedProgram& program);

}  // namespace moonshard
