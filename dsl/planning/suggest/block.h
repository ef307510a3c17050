// Block: modules of a layer that belong together (attention, a feed-forward block, the norms), the suggested style of
// each, and the reason; not yet as text. Stage before: the readers of layer.h, and ends.h. Stage after: write.h.
#pragma once

#include <string>
#include <vector>

#include "dsl/planning/suggest/numbers.h"

namespace moonshard {

// The suggested style of modules. Most are a style of the stdlib.
enum class Part {
  kEmbedding,  // vocab_rowwise
  kHead,       // colwise; the output is gathered, or stays sharded for a vocabulary-parallel loss
  kNorm,       // norm_on(residual)
  kColwise,    // split between `heads`, if known
  kRowwise,
  kFusedColwise,   // colwise, in parts of `sizes`, each split between its `part_heads`
  kHeadNorm,       // replicated, used by each rank on its own heads: its gradient is summed over the ranks
  kToLatent,       // replicated, from the residual stream to a latent that sharded projections take as input
  kSummed,         // replicated, used by sharded compute: its gradient is summed over the ranks
  kPerHead,        // a parameter, by its own path, with one value per head of `heads`
  kPerToken,       // a parameter, by its own path, with one value per token of the vocabulary
  kHeadTable,      // a table with one column per head of `heads`, usually of relative positions
  kFromLatent,     // colwise, split between `heads`, from a latent
  kExperts,        // experts.block of the stdlib, with `extra` as its options
  kRows,           // linear modules whose use is unknown: colwise, with the output gathered on every rank
  kFull,           // replicated
  kFullParameter,  // replicated parameters, by their own paths
};

struct Decision {
  Part part = Part::kFull;
  std::vector<std::string> names;  // of modules within the layer; outside of stacks, full paths
  Number heads;
  std::vector<Number> sizes;
  std::vector<Number> part_heads;
  std::string extra;      // kExperts: options of the block, as Lua
  bool turned = false;    // the weight is stored as [in, out]
  bool from_all = false;  // kColwise: from the output of another stack, not from the residual stream
  bool operator==(const Decision&) const = default;
};

struct Block {
  std::vector<Decision> decisions;
  bool sure = true;      // names, shapes and config.json agree
  bool unknown = false;  // unrecognized modules: their outputs are replicated, and the sequence stays full
  std::string why;       // for the comment in the plan
  // Attention: its directory, and the numbers of heads that the mesh must fit. The directory is also set for attention
  // that stays replicated because of other modules in it.
  std::string heads_of;
  Number heads;
  Number kv_heads;
  bool operator==(const Block&) const = default;
};

}  // namespace moonshard
