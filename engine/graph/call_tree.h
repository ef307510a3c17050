// CallTree: the calls of modules in the graph of an exported program: which nodes belong to each, what goes in and out.
//
// The tracer notes on every node the modules in whose calls it was made. A call's nodes are contiguous, so a call is a
// span of the node list and contains the calls inside it. Exception: the tracer computes a size once and uses it in all
// layers. Arithmetic on numbers is therefore placed in the outermost call in which its operands are known, so that
// equal layers take the number as an input and stay equal.
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
  int32_t parent = -1;     // index into CallTree::calls; -1: of the root
  // In order: nodes of the graph, and calls inside (index of the call, is_call).
  struct Item {
    uint32_t index = 0;
    bool is_call = false;
  };
  std::vector<Item> items;
  std::vector<uint32_t> inputs;   // values, by first use; not those of the program's tensors
  std::vector<uint32_t> outputs;  // values, in the order in which they are made
};

struct CallTree {
  std::vector<CallNode> calls;  // the root is the first; a call comes behind the one that holds it
  // Calls whose nodes are not contiguous, as "path@occurrence". They have no CallNode; their nodes belong to the
  // enclosing call.
  std::vector<std::string> torn;
};

CallTree FindCalls(const ExportedProgram& program);

}  // namespace moonshard::program
