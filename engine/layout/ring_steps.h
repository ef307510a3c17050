// RingSteps: which keys the ranks of a context-parallel attention exchange, step by step. Each rank has one block of
// the sequence: the tokens that shard(1) gives it (shards.h). In step 0 the queries of a rank attend to its own block,
// in step s to the block of rank - s, which it received from the rank before it. Attention is causal, so no block goes
// from the last rank back to the first. Steps whose keys are beyond the window of every query do not exist.
//
//   4 ranks    rank 0    rank 1    rank 2    rank 3
//   step 0     block 0   block 1   block 2   block 3
//   step 1               block 0   block 1   block 2
//   step 2                         block 0   block 1
//   step 3                                   block 0
//
// All of it follows from the sizes, so every rank and the cost model compute the same steps.
// Stage after: compile/cost.h, which predicts the collectives; ring_attention.h, which runs them.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/layout/collective_counts.h"
#include "engine/layout/shards.h"

namespace moonshard {

class RingSteps {
 public:
  // `length`: tokens of the full sequence, at least 0. `window`: positions to which a token attends, its own included,
  // at least 1; nullopt: all positions up to its own. `ranks`: at least 1.
  RingSteps(int64_t length, std::optional<int64_t> window, int64_t ranks);

  int64_t length() const { return length_; }
  // Number of the last step, which is the number of exchanges of one pass over the blocks. 0: no rank needs the keys of
  // another one.
  int64_t count() const { return count_; }
  // The tokens of the block of `rank`. Empty for ranks beyond the end of the sequence, and for `rank` = ranks.
  Interval Block(int64_t rank) const;
  // Whether some query of `rank` attends to a key of the block of rank - step, apart from padding. False for a rank
  // without tokens and where rank - step is negative.
  bool Attends(int64_t rank, int64_t step) const;

 private:
  int64_t length_;
  int64_t chunk_;  // tokens of a block; the last block may have fewer
  int64_t count_;
};

// The all-to-alls of one ring attention on `rank`, with the bytes that this rank sends. `token_bytes`: the keys and
// values of one token over batch and local heads, batch * key_heads * (D + Dv) * bytes of an element.
//
// Forward: count() exchanges of keys and values. Backward: these again, and count() exchanges of their gradients, which
// have `gradient_bytes` for a token: the same elements in float64 for float64, otherwise in float32.
CollectiveCount RingForward(const RingSteps& steps, int64_t rank, int64_t token_bytes);
CollectiveCount RingBackward(const RingSteps& steps, int64_t rank, int64_t token_bytes, int64_t gradient_bytes);

}  // namespace moonshard
