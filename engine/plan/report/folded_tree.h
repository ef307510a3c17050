// FoldedTree: a module tree in which equal subtrees are one. Sixty layers that are treated alike, each with 256 experts,
// are a handful of nodes.
// Stage before: compile. Stage after: report_data.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct FoldedNode {
  // One child, or several whose names are numbers and whose subtrees are equal.
  struct Child {
    std::string label;  // "mlp", "{0..31}"
    int64_t copies = 1;
    size_t node = 0;
    bool operator==(const Child&) const = default;
  };

  int64_t steps = -1;             // index into CompiledPlan::steps; -1: nothing happens here, and nothing is owned
  std::vector<Child> children;    // in tree order
  std::vector<std::string> tied;  // parameters that another module stores
  bool unit = false;              // of fsdp
  bool recomputed = false;
  bool operator==(const FoldedNode&) const = default;
};

struct FoldedTree {
  std::vector<FoldedNode> nodes;  // children before their parents; the last one is the root
};

FoldedTree FoldTree(const CompiledPlan& plan);

}  // namespace moonshard
