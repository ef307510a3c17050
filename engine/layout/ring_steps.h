// RingSteps: which keys the ranks of a context-parallel attention exchange, step by step. Each rank has tokens of the
// sequence: one chunk (shard(1)), or an early and a late one (shard(1,zigzag)), as shards.h has them. In step 0 the
// queries of a rank attend to its own keys, and in each later step to keys of one other rank, `offset` ranks before it
// around the ring, which that rank sends straight to it. Attention is causal: only keys to which some query of the
// receiver attends are sent, without those beyond its window. Offsets at which no rank needs any key have no step.
//
//   4 ranks, shard(1), chunks 0 to 3      4 ranks, shard(1,zigzag), chunks 0 to 7
//             rank 0  1     2     3                 rank 0    1     2     3
//   queries   0       1     2     3       queries   0 7       1 6   2 5   3 4
//   step 0    0       1     2     3       step 0    0 7       1 6   2 5   3 4
//   step 1            0     1     2       step 1    3 4       0     1     2
//   step 2                  0     1       step 2    2 5       3 4   0     1
//   step 3                        0       step 3    1 6       2 5   3 4   0
//
// With zigzag every rank computes the scores of two pairs of chunks in each step after step 0 (late queries and two
// chunks of keys, or all queries and an early chunk), so no rank waits for another. With plain chunks the last rank
// computes n blocks of scores and the first one.
//
// Traffic, in blocks of T / n tokens: a ring that passes full blocks on sends n - 1 from every rank. Zigzag sends
// (n - 1 + r) / 2 from rank r, which is at most n - 1 and three quarters of it on average; plain chunks send n - 1 - r.
// These are the fewest, since every key that is sent has a query at its receiver. A window that is shorter than a chunk
// needs window - 1 tokens of one chunk before each chunk of queries: plain chunks then send half of what zigzag sends,
// and share the work evenly as well.
//
// If the ranks of groups of `inner` consecutive ranks exchange heads before attention (cp=2x4), all ranks of a group
// have the same tokens of other heads. The table above is then that of the groups: a rank exchanges keys with the ranks
// that have its place in the other groups.
//
// All of it follows from the sizes, so every rank and the cost model compute the same steps.
// Stage after: compile/cost.h, which predicts the collectives; ring_attention.h, which runs them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layout/collective_counts.h"
#include "engine/layout/shards.h"

namespace moonshard {

class RingSteps {
 public:
  // `length`: tokens of the full sequence, at least 0. `window`: positions to which a token attends, its own included,
  // at least 1; nullopt: all positions up to its own. `ranks`: at least 1. `zigzag`: whether the tokens are
  // shard(1,zigzag); otherwise they are shard(1). `inner`: ranks of a group that exchanges heads, divides `ranks`; 1:
  // no heads are exchanged.
  RingSteps(int64_t length, std::optional<int64_t> window, int64_t ranks, bool zigzag, int64_t inner = 1);

  int64_t length() const { return length_; }
  int64_t ranks() const { return static_cast<int64_t>(tokens_.size()) * inner_; }
  // Number of the last step, which is the number of exchanges of one pass over the keys. 0: no rank needs the keys of
  // another one.
  int64_t count() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  // The tokens of `rank` in attention, in the order of its tensors: the chunks that are not empty, adjacent ones
  // joined.
  const std::vector<Interval>& TokensOf(int64_t rank) const { return tokens_[static_cast<size_t>(rank / inner_)]; }
  // The rank whose keys `rank` attends to in step `step` (0 to count()), and the rank that attends to those of `rank`.
  int64_t Source(int64_t rank, int64_t step) const;
  int64_t Target(int64_t rank, int64_t step) const;
  // The tokens of Source(rank, step) to which some query of `rank` attends, apart from padding: parts of
  // TokensOf(source), in the order of its tensors, none of them empty.
  std::vector<Interval> KeysOf(int64_t rank, int64_t step) const;

 private:
  std::vector<Interval> Needed(int64_t rank, int64_t source) const;

  int64_t length_;
  std::optional<int64_t> window_;
  int64_t inner_;
  std::vector<std::vector<Interval>> tokens_;  // by group
  std::vector<int64_t> offsets_;               // by step, in ranks
};

// The number of tokens of intervals that do not overlap.
int64_t TokenCount(const std::vector<Interval>& intervals);

// The all-to-alls of one ring attention on `rank`, with the bytes that this rank sends. `token_bytes`: the keys and
// values of one token over batch and local heads, batch * key_heads * (D + Dv) * bytes of an element.
//
// Forward: count() exchanges of keys and values. Backward: these again, and count() exchanges of their gradients, which
// have `gradient_bytes` for a token: the same elements in float64 for float64, otherwise in float32.
CollectiveCount RingForward(const RingSteps& steps, int64_t rank, int64_t token_bytes);
CollectiveCount RingBackward(const RingSteps& steps, int64_t rank, int64_t token_bytes, int64_t gradient_bytes);

}  // namespace moonshard
