// Ends: the modules outside of the stacks of layers: the embedding, the final norm, the head, and the rest. Stage
// before: outline.h. Stage after: write.h.
#pragma once

#include <string>
#include <vector>

#include "dsl/planning/suggest/block.h"
#include "dsl/planning/suggest/outline.h"

namespace moonshard {

struct Ends {
  std::vector<Block> first;       // the embedding
  std::vector<Block> last;        // the last norm and the head; names are full paths
  std::vector<std::string> rest;  // paths of modules that none of these is
  bool has_logits = false;        // the head's outputs are the vocabulary
};

// `stacks` are the paths of the sharded layers.
Ends ReadEnds(const Outline& outline, const ModelNumbers& numbers, int64_t hidden,
              const std::vector<std::string>& stacks);

}  // namespace moonshard
