// Write: the text of the suggested plan file. Rules that are the same in several kinds of layers are written once, with
// the layers in the pattern; each block has a comment with its certainty and the reason.
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
  // Layers that can be units of fsdp: a tensor that a layer shares with a module outside of it belongs to no unit.
  std::set<int64_t> units;
  // Whether the hidden states may be shards of the sequence between its first and its last layer (sequence.h), and then
  // the blocks of a layer that get all tokens, since what they compute is not understood.
  bool sequence = false;
  struct Gathered {
    std::string block;
    std::set<int64_t> layers;
  };
  std::vector<Gathered> gathered;
};

struct Draft {
  std::string model;       // its class, for the title
  bool only_sure = false;  // guesses were left replicated
  ModelNumbers numbers;
  std::vector<ReadStack> stacks;
  Ends ends;
  bool sequence = false;    // whether the hidden states may be shards of the sequence from the embedding to the head
  std::string no_sequence;  // why they may not in any stack
  std::vector<std::string> rest;  // modules outside that stay replicated without a rule
  std::set<std::string> whole;    // paths, in stacks with a * for the layer, that may not be sharded by rows
};

// The lines of a text, counted from 1, that a block's comment and rules stand on.
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
