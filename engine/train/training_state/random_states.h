// RandomStates: the saved state from which each random number generator of a rank resumes when a run is loaded.
//
//   On a mesh with the same axes  the state of the same rank.
//   On any other mesh             a rank has a data coordinate d (dp_replicate, dp_shard, ep) and a model coordinate m
//                                 (the others). It resumes from the state of the saved rank (d, m) if that rank
//                                 exists. If not, the saved ranks with data coordinate d decide:
//     their states are equal        this state (the ranks must draw equal numbers: dropout on replicated values)
//     their states differ           a new seed from the state of (d, 0) and m
//     there are no such ranks       the state or seed by the rules above for data coordinate 0, then a new seed from
//                                   that state or seed and d
//
// The random numbers of every rank therefore depend only on the checkpoint and the mesh, data-parallel ranks draw
// different numbers, and the ranks of one data coordinate draw equal numbers if and only if they did when the run was
// saved.
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
  int64_t rank = 0;                // the saved rank whose state is used
  std::optional<uint64_t> reseed;  // if set, the new seed of the generator, derived from this state
};

// Returns the state for `rank` of `mesh`. `states` are the saved states of one generator, as bytes, by rank of the mesh
// `saved`; none of them is empty.
RandomChoice ChooseRandomState(const MeshShape& saved, const std::vector<std::string>& states, const MeshShape& mesh,
                               int64_t rank);

}  // namespace moonshard
