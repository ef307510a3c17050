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
  std::vector<Block> last;        // the final norm and the head; names are full paths
  std::vector<std::string> rest;  // paths of all other modules outside of the stacks
  bool has_logits = false;        // the head's outputs are logits over the vocabulary
};

// Finds the ends. `hidden`: number of features of the hidden states. `stacks`: paths of the sharded lists of layers.
Ends ReadEnds(const Outline& outline, const ModelNumbers& numbers, int64_t hidden,
              const std::vector<std::string>& stacks);

}  // namespace moonshard
