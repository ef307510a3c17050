#include "engine/layout/mesh_shape.h"

#include <charconv>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

Diagnostic BadMesh(std::string message, std::string declared) {
  Diagnostic d = MakeDiagnostic(Finding::kBadMesh, std::move(message));
  d.declared = std::move(declared);
  d.required = "axes with sizes, as in tp=2,dp=4";
  return d;
}

}  // namespace

const char* ToString(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kPp: return "pp";
    case MeshAxis::kDpReplicate: return "dp_replicate";
    case MeshAxis::kDpShard: return "dp_shard";
    case MeshAxis::kEp: return "ep";
    case MeshAxis::kCp: return "cp";
    case MeshAxis::kTp: return "tp";
  }
  return "tp";
}

std::vector<MeshAxis> AxisSet::axes() const {
  std::vector<MeshAxis> out;
  for (MeshAxis axis : kMeshAxes) {
    if (contains(axis)) out.push_back(axis);
  }
  return out;
}

std::string ToString(AxisSet axes) {
  std::string out;
  for (MeshAxis axis : axes.axes()) out += (out.empty() ? "" : " x ") + std::string(ToString(axis));
  return out;
}

std::optional<MeshAxis> MeshAxisFromName(std::string_view name) {
  if (name == "dp") return MeshAxis::kDpShard;
  for (MeshAxis axis : kMeshAxes) {
    if (name == ToString(axis)) return axis;
  }
  return std::nullopt;
}

std::span<const std::string> MeshAxisNames() {
  static const std::vector<std::string> names = {"pp", "dp_replicate", "dp_shard", "ep", "cp", "tp"};
  return names;
}

Result<MeshShape> MeshShape::Make(std::span<const std::pair<std::string, int64_t>> axes) {
  MeshShape mesh;
  std::array<bool, kMeshAxisCount> given = {};
  Diagnostics errors;
  int64_t world = 1;
  for (const auto& [name, size] : axes) {
    const std::optional<MeshAxis> axis = MeshAxisFromName(name);
    if (!axis) {
      Diagnostic d = MakeDiagnostic(Finding::kUnknownAxis, "there is no mesh axis '" + name + "'");
      d.help = DidYouMean(name, MeshAxisNames());
      errors.push_back(std::move(d));
      continue;
    }
    const auto index = static_cast<size_t>(*axis);
    if (given[index]) errors.push_back(BadMesh("mesh axis '" + name + "' is given twice", name));
    given[index] = true;
    if (size < 1) {
      errors.push_back(BadMesh("mesh axis '" + name + "' has size " + std::to_string(size) + "; the minimum is 1",
                               name + "=" + std::to_string(size)));
      continue;
    }
    if (size > kMostRanks / world) {
      errors.push_back(BadMesh("the mesh has too many ranks", name + "=" + std::to_string(size)));
      errors.back().required = "at most " + std::to_string(kMostRanks) + " ranks";
      continue;
    }
    world *= size;
    mesh.sizes_[index] = size;
  }
  if (!errors.empty()) return errors;
  return mesh;
}

Result<MeshShape> MeshShape::Parse(std::string_view text) {
  std::vector<std::pair<std::string, int64_t>> axes;
  if (text.empty()) return MeshShape();
  for (const std::string& part : Split(text, ',')) {
    const size_t equals = part.find('=');
    int64_t size = 0;
    const char* end = part.data() + part.size();
    if (equals == std::string::npos || equals == 0 ||
        std::from_chars(part.data() + equals + 1, end, size) != std::from_chars_result{end, std::errc()}) {
      return BadMesh("'" + part + "' does not have the form AXIS=SIZE", std::string(text));
    }
    axes.emplace_back(part.substr(0, equals), size);
  }
  return Make(axes);
}

int64_t MeshShape::world_size() const {
  int64_t product = 1;
  for (int64_t size : sizes_) product *= size;
  return product;
}

int64_t MeshShape::Coordinate(int64_t rank, MeshAxis axis) const {
  Check(rank >= 0 && rank < world_size(), "rank outside the mesh");
  for (size_t i = kMeshAxisCount; i-- > static_cast<size_t>(axis) + 1;) rank /= sizes_[i];
  return rank % size(axis);
}

int64_t MeshShape::size(AxisSet axes) const {
  int64_t product = 1;
  for (MeshAxis axis : axes.axes()) product *= size(axis);
  return product;
}

int64_t MeshShape::Coordinate(int64_t rank, AxisSet axes) const {
  int64_t place = 0;
  for (MeshAxis axis : axes.axes()) place = place * size(axis) + Coordinate(rank, axis);
  return place;
}

int64_t MeshShape::data_ranks() const {
  int64_t product = 1;
  for (MeshAxis axis : kDataAxes) product *= size(axis);
  return product;
}

int64_t MeshShape::DataCoordinate(int64_t rank) const {
  int64_t place = 0;
  for (MeshAxis axis : kDataAxes) place = place * size(axis) + Coordinate(rank, axis);
  return place;
}

std::vector<int64_t> MeshShape::GroupOf(int64_t rank, MeshAxis axis) const {
  int64_t stride = 1;
  for (size_t i = kMeshAxisCount; i-- > static_cast<size_t>(axis) + 1;) stride *= sizes_[i];
  const int64_t first = rank - Coordinate(rank, axis) * stride;
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < size(axis); ++i) ranks.push_back(first + i * stride);
  return ranks;
}

std::vector<int64_t> MeshShape::GroupOf(int64_t rank, AxisSet axes) const {
  std::vector<int64_t> ranks = {rank};
  for (MeshAxis axis : axes.axes()) {
    std::vector<int64_t> along;
    for (int64_t member : ranks) {
      const std::vector<int64_t> group = GroupOf(member, axis);
      along.insert(along.end(), group.begin(), group.end());
    }
    ranks = std::move(along);
  }
  return ranks;
}

std::string MeshShape::ToString() const {
  std::string out;
  for (MeshAxis axis : kMeshAxes) {
    if (size(axis) == 1) continue;
    out += (out.empty() ? "" : ",") + std::string(moonshard::ToString(axis)) + "=" + std::to_string(size(axis));
  }
  return out.empty() ? "tp=1" : out;
}

}  // namespace moonshard
