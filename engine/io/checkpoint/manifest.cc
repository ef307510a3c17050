#include "engine/io/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "engine/core/base/check.h"

namespace moonshard {

const ShardedTensor* Manifest::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors, name, {}, &ShardedTensor::name);
  return found == tensors.end() || found->name != name ? nullptr : &*found;
}

size_t Manifest::FileOfRank(int64_t rank) const {
  const int64_t holder = HolderOf(mesh, ShardingAxes(layouts), rank);
  const auto found = std::ranges::find(rank_files, holder, &RankFile::rank);
  Check(found != rank_files.end(), "FileOfRank: the rank has no file");
  return static_cast<size_t>(found - rank_files.begin());
}

// Ranks that differ only along axes that shard nothing hold the same shards; the one with coordinate 0 along those axes
// stands for all of them and has the file. The number is built as ranks are: row-major over the axes.
int64_t HolderOf(const MeshShape& mesh, const std::vector<MeshAxis>& sharding, int64_t rank) {
  int64_t holder = 0;
  for (MeshAxis axis : kMeshAxes) {
    const bool cuts = std::ranges::find(sharding, axis) != sharding.end();
    holder = holder * mesh.size(axis) + (cuts ? mesh.Coordinate(rank, axis) : 0);
  }
  return holder;
}

std::vector<MeshAxis> ShardingAxes(const std::vector<ShardLayout>& layouts) {
  std::vector<MeshAxis> axes;
  for (MeshAxis axis : kMeshAxes) {
    const auto cuts = [&](const ShardLayout& layout) { return layout.placement.contains(ToString(axis)); };
    if (std::ranges::any_of(layouts, cuts)) axes.push_back(axis);
  }
  return axes;
}

std::string RankFileName(int64_t rank) {
  std::array<char, 48> name = {};
  std::snprintf(name.data(), name.size(), "rank-%05lld.safetensors", static_cast<long long>(rank));
  return name.data();
}

// One form for one set of indices: no empty intervals, neighbours joined. Shards are compared as values (is it stored
// as it is, does a file of another rank have it), and two forms of one set would compare as different shards.
ShardDims TidyShard(const ShardDims& shard) {
  ShardDims out(shard.size());
  for (size_t d = 0; d < shard.size(); ++d) {
    for (const Interval& interval : shard[d]) {
      if (interval.length == 0) continue;
      if (!out[d].empty() && out[d].back().begin + out[d].back().length == interval.begin) {
        out[d].back().length += interval.length;
      } else {
        out[d].push_back(interval);
      }
    }
  }
  return out;
}

std::vector<int64_t> LocalShapeOf(const ShardDims& shard) {
  std::vector<int64_t> shape;
  for (const std::vector<Interval>& intervals : shard) {
    shape.push_back(0);
    for (const Interval& interval : intervals) shape.back() += interval.length;
  }
  return shape;
}

}  // namespace moonshard
