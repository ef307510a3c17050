// Write: writes the text of the suggested plan file. Rules that are the same in several kinds of layers are written
// once, with the layers in the pattern; each block has a comment with its certainty and the reason.
// Stage before: layer.h, ends.h.
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
  // Layers that can be fsdp units. A layer that shares a tensor with a module outside of the layer cannot be a unit.
  std::set<int64_t> units;
  // `sequence`: whether the hidden states may be sharded along the sequence between the first and the last layer
  // (sequence.h). `gathered`: the blocks of a layer that get the full sequence when `sequence` is set, because their
  // computation is not understood.
  bool sequence = false;
  struct Gathered {
    std::string block;
    std::set<int64_t> layers;
  };
  std::vector<Gathered> gathered;
};

struct Draft {
  std::string model;       // class of the model, for the title
  bool only_sure = false;  // guesses are left replicated
  ModelNumbers numbers;
  std::set<std::string> types;  // the model types that the config and its sections name
  std::vector<ReadStack> stacks;
  Ends ends;
  bool sequence = false;  // whether the hidden states may be sharded along the sequence from the embedding to the head
  std::string no_sequence;        // why no stack may have sharded hidden states
  std::string context;            // "ulysses", ...: the default of the option `context`; "": no such option
  std::string context_why;        // what it was chosen by
  std::string no_context;         // why the plan has no option `context`; "": it was not asked for
  std::vector<std::string> rest;  // modules without a rule, which the default replicates
  std::set<std::string> whole;    // paths (PathIn) of modules that may not be sharded by ShardRows
};

// The first and last line of a block (comment and rules) in the text, counted from 1.
struct BlockLines {
  const Block* block = nullptr;  // of the draft
  const Stack* stack = nullptr;  // null: outside of the stacks
  int first = 0;
  int last = 0;
};

struct WrittenPlan {
  std::string text;
  std::vector<BlockLines> blocks;  // in the order of the text
};

WrittenPlan WritePlan(const Draft& draft);

}  // namespace moonshard
