// Block: modules of a layer that belong together (attention, a feed-forward block, the norms) and what is suggested for
// them, with the reason; not yet as text. Made by layer.h's readers and ends.h; stage after: write.h.
#pragma once

#include <string>
#include <vector>

#include "dsl/planning/suggest/numbers.h"

namespace moonshard {

// What happens to modules; each is one style of the stdlib.
enum class Part {
  kEmbedding,  // vocab_rowwise
  kHead,       // colwise; its output is gathered, or stays shards for a loss over them
  kNorm,       // norm_on(residual)
  kColwise,    // between `heads`, if known
  kRowwise,
  kFusedColwise,   // parts of `sizes`, each between `part_heads`
  kHeadNorm,       // the same on every rank, used by each on its own heads
  kToLatent,       // replicated, from the residual stream to a latent that sharded projections read
  kSummed,         // replicated, used by sharded compute: its gradient is summed over the ranks
  kPerHead,        // a parameter, by its own path, with one number for each of `heads`
  kPerToken,       // a parameter, by its own path, with one number for each token of the vocabulary
  kHeadTable,      // a table with a column for each of `heads`, of distances mostly
  kFromLatent,     // colwise between `heads`, from a latent
  kExperts,        // experts.block of the stdlib, with `extra` as its options
  kRows,           // of linear modules whose use is unknown: colwise, and all of the output on every rank
  kFull,           // replicated
  kFullParameter,  // the same for parameters by their own paths
};

struct Decision {
  Part part = Part::kFull;
  std::vector<std::string> names;  // of modules in the layer, or full paths outside of stacks
  Number heads;
  std::vector<Number> sizes;
  std::vector<Number> part_heads;
  std::string extra;      // kExperts: options of the block, as Lua
  bool turned = false;    // the weight is stored as [in, out]
  bool from_all = false;  // kColwise: of hidden states that another stack made, not of the residual stream
  bool operator==(const Decision&) const = default;
};

struct Block {
  std::vector<Decision> decisions;
  bool sure = true;      // names, shapes and config.json agree
  bool unknown = false;  // unrecognized modules: their outputs are replicated, and the sequence stays full
  std::string why;       // for the comment
  // Attention: the number of heads that the mesh must fit.
  std::string
      heads_of;  // directory, for the message; also of attention that stays replicated because of other modules in it
  Number heads;
  Number kv_heads;
  bool operator==(const Block&) const = default;
};

}  // namespace moonshard
