// Random states: which state a rank's generators resume from when a run is loaded.
//
//   On a mesh of the same axes    the rank's own.
//   On any other                  a rank has a data coordinate d (dp_replicate, dp_shard) and a model coordinate m (the
//                                 other axes). It takes the state of the saved rank (d, m) where there was one. Else:
//     all saved ranks of d equal    theirs (they must draw equal numbers: dropout on replicated values)
//     no saved rank of d            as these rules say with 0 for d, then reseeded from that state and d
//     saved ranks of d not equal    reseeded from the state of (d, 0) and m
//
// So every rank's numbers follow from the checkpoint and the mesh alone, data-parallel ranks draw differently, and the
// ranks of one data coordinate draw equal numbers exactly if they did when the run was saved.
// Used by training_checkpoints.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/layout/mesh_shape.h"

namespace moonshard {

struct RandomChoice {
  int64_t rank = 0;                // the saved rank whose state it is
  std::optional<uint64_t> reseed;  // if set, the generator is seeded with this, which was derived from that state
};

// `states`: of one generator, by rank of the mesh `saved`, as bytes; none empty.
RandomChoice ChooseRandomState(const MeshShape& saved, const std::vector<std::string>& states, const MeshShape& mesh,
                               int64_t rank);

}  // namespace moonshard
