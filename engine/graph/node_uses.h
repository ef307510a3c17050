// NodeUses: which results of a program need a node.
// Stage before: engine/io/exported_program. Stages after: local_sizes.h, engine/models/program/trial.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/io/exported_program/exported_program.h"

namespace moonshard {

enum class NodeUse : uint8_t {
  kNothing,  // no output of the program depends on the node's results
  kLoss,     // only the output "loss" does
  kOutputs,
};

// The indices of the inputs that the operator writes, by its name: the first of "aten::add_" and "aten::__ior__"; of an
// overload that is given its results ("aten::cumsum.out") the last ones, of which there are as many as results. Running
// statistics, which the operator of a norm updates in training, do not count.
std::vector<size_t> WrittenInputs(const ProgramNode& node);
inline bool WritesOperand(const ProgramNode& node) { return !WrittenInputs(node).empty(); }

// Returns the use of each node of the graph. A node that writes a tensor counts as used by the outputs, and so does
// what a node reads that writes a tensor or chooses a branch.
std::vector<NodeUse> NodeUsesOf(const ExportedProgram& program);

}  // namespace moonshard
