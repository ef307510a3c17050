// Write: the text of the suggested plan file. Rules that are the same in several kinds of layers are written once, with
// the layers in the pattern; each block has a comment with its certainty and the reason. Stage before: layer.h, ends.h.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dsl/planning/suggest/block.h"
#include "dsl/planning/suggest/ends.h"
#include "dsl/planning/suggest/outline.h"

namespace moonshard {

struct ReadStack {
  const Stack* stack = nullptr;
  struct Row {
    Block block;
    std::set<int64_t> layers;
  };
  std::vector<Row> rows;
  // Layers that can be units of fsdp: a tensor that a layer shares with a module outside of it belongs to no unit.
  std::set<int64_t> units;
};

struct Draft {
  std::string model;  // its class, for the title
  ModelNumbers numbers;
  std::vector<ReadStack> stacks;
  Ends ends;
  bool sequence = false;          // whether the plan can offer sequence parallelism
  std::string no_sequence;        // else why not
  std::vector<std::string> rest;  // modules outside that stay replicated without a rule
};

std::string WritePlan(const Draft& draft);

}  // namespace moonshard
