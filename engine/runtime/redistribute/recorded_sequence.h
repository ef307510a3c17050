// RecordedSequence: the number of tokens of the sequences of a step on a Recording mesh (device_mesh.h). A rank's own
// tokens do not tell it: of 7 tokens on two ranks the first has 4, as it has of 8. On a mesh with peers the ranks
// exchange their numbers; a rank without peers has this declaration instead, or takes the shards for those of one
// length.
//
//   const moonshard::RecordedSequence sequence(7, tokens, 2, 0);   // of the step that follows on this thread
//
// Stage before: layout/shards.h. Stage after: redistribute and apply, where they would exchange the numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

// Belongs to one thread, on which the newest that exists counts.
class RecordedSequence {
 public:
  // `length`: tokens of each sequence. `tokens`: how the `ranks` ranks of cp have them, shard(1) or shard(1,zigzag),
  // with the inner factor of cp if there is one. `rank`: the coordinate of this rank.
  RecordedSequence(int64_t length, const Layout& tokens, int64_t ranks, int64_t rank);
  ~RecordedSequence();
  RecordedSequence(const RecordedSequence&) = delete;
  RecordedSequence& operator=(const RecordedSequence&) = delete;

  // Returns the tokens that each rank of `group` has, in rank order, where the group is that of cp, or the ranks of its
  // inner factor. nullopt: of another group, or if this rank has not `own` of the declared sequence, or nothing is
  // declared.
  static std::optional<std::vector<int64_t>> TokensOf(const AxisGroup& group, int64_t own);

 private:
  RecordedSequence* outer_;
  std::vector<int64_t> of_rank_;
  int64_t rank_;
};

}  // namespace moonshard
