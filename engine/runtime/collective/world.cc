// A mesh has groups along its axes only, and none of all its ranks. A number from every rank is therefore exchanged
// axis after axis, innermost first: after the first exchange a rank has the numbers of its tp group, after the next
// those of all groups that differ in one further coordinate, and so on. For sums and maxima the partial result of each
// axis is enough, and adding in rank order along each axis gives every rank the same bits.
#include "engine/runtime/collective/world.h"

#include <algorithm>
#include <bit>
#include <ranges>

namespace moonshard {

World::World(const DeviceMesh& mesh) {
  if (mesh.recording()) return;
  for (const MeshAxis axis : std::views::reverse(kMeshAxes)) {
    if (mesh.shape().size(axis) > 1) groups_.push_back(AxisGroup::Make(mesh, axis));
  }
}

std::vector<int64_t> World::All(int64_t mine, const CollectiveLabel& label) const {
  std::vector<int64_t> all = {mine};
  // Ranks count row-major with tp innermost, and groups_ begins with the innermost axis: the numbers of one coordinate
  // of the next axis are a contiguous block of those gathered so far.
  for (const std::shared_ptr<AxisGroup>& group : groups_) {
    std::vector<int64_t> more(all.size() * static_cast<size_t>(group->size()));
    for (size_t inner = 0; inner < all.size(); ++inner) {
      const std::vector<int64_t> places = group->ExchangeNumbers(all[inner], label);
      for (size_t place = 0; place < places.size(); ++place) more[place * all.size() + inner] = places[place];
    }
    all = std::move(more);
  }
  return all;
}

std::vector<double> World::All(double mine, const CollectiveLabel& label) const {
  std::vector<double> out;
  for (const int64_t bits : All(std::bit_cast<int64_t>(mine), label)) out.push_back(std::bit_cast<double>(bits));
  return out;
}

int64_t World::Max(int64_t mine, const CollectiveLabel& label) const {
  for (const std::shared_ptr<AxisGroup>& group : groups_) mine = std::ranges::max(group->ExchangeNumbers(mine, label));
  return mine;
}

double World::Mean(double mine, const CollectiveLabel& label) const {
  double ranks = 1;
  for (const std::shared_ptr<AxisGroup>& group : groups_) {
    double sum = 0;
    for (const int64_t bits : group->ExchangeNumbers(std::bit_cast<int64_t>(mine), label)) {
      sum += std::bit_cast<double>(bits);
    }
    mine = sum;
    ranks *= static_cast<double>(group->size());
  }
  return mine / ranks;
}

}  // namespace moonshard
