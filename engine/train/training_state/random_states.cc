// Which saved generator a rank continues, when the mesh may be another one. Two coordinates matter: the data coordinate
// (which micro-batches), and the model coordinate (which shard). Ranks of one data coordinate either draw equal numbers
// or each its own; which of them the saved states show by being equal or not. So a rank takes
//   the state of its own place, if that existed
//   the common state of its data coordinate, if all of its ranks drew alike
//   a new seed from a saved state and its coordinate otherwise, so that new ranks differ from each other and a second
//     load gives the same numbers.
#include "engine/train/training_state/random_states.h"

#include <algorithm>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"

namespace moonshard {
namespace {

// Data and model coordinate.
std::pair<int64_t, int64_t> PlaceOf(const MeshShape& mesh, int64_t rank) {
  int64_t data = 0;
  int64_t model = 0;
  for (MeshAxis axis : kMeshAxes) {
    int64_t& place = IsDataAxis(axis) ? data : model;
    place = place * mesh.size(axis) + mesh.Coordinate(rank, axis);
  }
  return {data, model};
}

uint64_t SeedFrom(const std::string& state, const std::string& what, int64_t coordinate) {
  Hasher hasher;
  hasher.Add(state.data(), state.size());
  hasher.Add(what.data(), what.size());
  hasher.Add(&coordinate, sizeof(coordinate));
  return hasher.Value();
}

}  // namespace

RandomChoice ChooseRandomState(const MeshShape& saved, const std::vector<std::string>& states, const MeshShape& mesh,
                               int64_t rank) {
  Check(static_cast<int64_t>(states.size()) == saved.world_size(), "a state of every saved rank");
  const auto [data, model] = PlaceOf(mesh, rank);
  // Saved ranks of a data coordinate by model coordinate.
  const auto ranks_of = [&](int64_t d) {
    std::vector<std::pair<int64_t, int64_t>> ranks;
    for (int64_t r = 0; r < saved.world_size(); ++r) {
      const auto [saved_data, saved_model] = PlaceOf(saved, r);
      if (saved_data == d) ranks.emplace_back(saved_model, r);
    }
    std::ranges::sort(ranks);
    return ranks;
  };
  std::vector<std::pair<int64_t, int64_t>> ranks = ranks_of(data);
  const bool new_data = ranks.empty();
  if (new_data) ranks = ranks_of(0);
  const std::string& first = states[static_cast<size_t>(ranks.front().second)];
  const bool alike =
      std::ranges::all_of(ranks, [&](const auto& r) { return states[static_cast<size_t>(r.second)] == first; });

  RandomChoice choice;
  choice.rank = ranks.front().second;
  if (!alike) {
    const auto own = std::ranges::find(ranks, model, &std::pair<int64_t, int64_t>::first);
    if (own != ranks.end()) {
      choice.rank = own->second;
    } else {
      choice.reseed = SeedFrom(first, "model", model);
    }
  }
  if (new_data) {
    const uint64_t model_seed = choice.reseed.value_or(0);
    choice.reseed = SeedFrom(states[static_cast<size_t>(choice.rank)] + std::to_string(model_seed), "data", data);
  }
  return choice;
}

}  // namespace moonshard
