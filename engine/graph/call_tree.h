// CallTree: the module calls in the graph of an exported program, with the nodes, inputs and outputs of each call.
//
// For every node, the tracer records the stack of module calls in which the node was made. The nodes of a call are
// normally contiguous (CallTree::torn has the other calls), so a call is a span of the node list and contains the calls
// inside it. Sizes are the exception: the tracer computes a size once and uses it in all layers. FindCalls therefore
// places arithmetic on sizes in the outermost call in which the operands are known, so that equal layers have the size
// as an input and remain equal.
// Stage before: engine/io/exported_program. Stage after: compile_program.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/io/exported_program/exported_program.h"

namespace moonshard::program {

struct CallNode {
  std::string module;      // path; "": the root
  std::string kind;        // class of the module
  int32_t occurrence = 0;  // among the calls of this module, from 0
  int32_t parent = -1;     // index into CallTree::calls; -1 for the root
  // In order: the call's own nodes (index into the graph) and the calls inside it (index into CallTree::calls,
  // is_call).
  struct Item {
    uint32_t index = 0;
    bool is_call = false;
  };
  std::vector<Item> items;
  std::vector<uint32_t> inputs;   // values by first use, without those of ExportedProgram::tensors
  std::vector<uint32_t> outputs;  // values, in the order in which they are computed
};

struct CallTree {
  std::vector<CallNode> calls;  // the root is the first; a call comes after the enclosing call
  // Calls whose nodes are not contiguous, as "path@occurrence". They have no CallNode; their nodes belong to the
  // enclosing call.
  std::vector<std::string> torn;
};

// Returns the calls of `program`.
CallTree FindCalls(const ExportedProgram& program);

}  // namespace moonshard::program
