// Block: modules of a layer that belong together (attention, a feed-forward block, the norms), the suggested style of
// each, and the reason; not yet as text. Stage before: the readers of layer.h, and ends.h. Stage after: write.h.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "dsl/planning/suggest/numbers.h"

namespace moonshard {

// The suggested style of modules. Most values are styles of the stdlib.
enum class Part {
  kEmbedding,  // vocab_rowwise
  kHead,       // colwise; the output is gathered, or stays sharded for a vocabulary-parallel loss
  kNorm,       // norm_on(residual)
  kColwise,    // split between `heads`, if known
  kRowwise,
  kFusedColwise,   // colwise; the output is parts of `sizes`, and each part is split between its `part_heads`
  kHeadNorm,       // replicated; each rank applies it to its own heads, so the gradient is summed over ranks
  kToLatent,       // replicated, from the residual stream to a latent that sharded projections take as input
  kSummed,         // replicated, used in a sharded computation, so the gradient is summed over the ranks
  kPerHead,        // a parameter with one value per head of `heads`; its rule names the parameter
  kPerChannel,     // a parameter with one row per channel of a short convolution; its rule names the parameter
  kPerToken,       // a parameter with one value per token of the vocabulary; its rule names the parameter
  kHeadTable,      // a table with one column per head of `heads`, usually of relative positions
  kFromLatent,     // colwise, split between `heads`, from a latent
  kExperts,        // experts.block of the stdlib, with `extra` as its options
  kRows,           // linear modules whose use is unknown: colwise, with the output gathered on every rank
  kTable,          // tables that are called: sharded along their features, with the output gathered
  kChannels,       // convolutions with one group: sharded along their output channels, with the output gathered
  kFeatureHead,    // rowwise, from full hidden states: the weight is tied to tables, and its outputs are summed
  kFull,           // replicated
  kFullParameter,  // replicated parameters; their rules name the parameters
};

// Whether every rank gets the full output of the modules, so that any use of it is right.
inline bool IsGathered(Part part) {
  return part == Part::kRows || part == Part::kTable || part == Part::kChannels || part == Part::kFeatureHead;
}

struct Decision {
  Part part = Part::kFull;
  std::vector<std::string> names;  // of modules, relative to the layer; full paths for modules outside of the stacks
  Number heads;
  std::vector<Number> sizes;
  std::vector<Number> part_heads;
  std::string extra;      // as Lua: kExperts: options of the block; kTable: names of its further parameters
  bool turned = false;    // the weight is stored as [in, out]
  int kernel_dims = 0;    // kChannels: 2 for a weight [out, in, height, width]
  bool from_all = false;  // kColwise: the input is the output of another stack, not the residual stream
  bool operator==(const Decision&) const = default;
};

struct Block {
  std::vector<Decision> decisions;
  bool sure = true;      // names, shapes and config.json agree
  bool unknown = false;  // unrecognized modules: their outputs are replicated, and the sequence stays full
  std::string why;       // for the comment in the plan
  // For attention: `heads_of` is the path of the attention module, and `heads` and `kv_heads` are the numbers of heads
  // that the mesh must fit. `heads_of` is also set if the attention stays replicated because of another module inside
  // the attention module.
  std::string heads_of;
  Number heads;
  Number kv_heads;
  bool operator==(const Block&) const = default;
};

// Whether the block needs all tokens, though its modules are known: a convolution reaches back over them.
inline bool MixesTokens(const Block& block) {
  return std::ranges::any_of(block.decisions, [](const Decision& d) { return d.part == Part::kPerChannel; });
}

}  // namespace moonshard
