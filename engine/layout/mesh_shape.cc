#include "engine/layout/mesh_shape.h"

#include <algorithm>
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

constexpr const char* kCpHeads = "cp_heads";  // in JSON, and in the arguments of Make

// A factor of 1 leaves one number of cp, for the ring or the exchange of heads alone.
Diagnostic BadFactors(std::string declared) {
  Diagnostic d = BadMesh("the two factors of mesh axis 'cp' must be at least 2 each", std::move(declared));
  d.required = "cp=RxH: keys and values travel between R groups of H ranks, and the ranks of a group exchange heads";
  d.help = "one of the two alone has one number, as in cp=4: context = \"ring\" or \"ulysses\" in the plan";
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
  std::optional<int64_t> cp_heads;
  for (const auto& [name, size] : axes) {
    if (name == kCpHeads) {
      if (cp_heads) errors.push_back(BadMesh("'cp_heads' is given twice", name));
      cp_heads = size;
      continue;
    }
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
  if (cp_heads && errors.empty()) {
    const int64_t cp = mesh.size(MeshAxis::kCp);
    if (*cp_heads < 2 || cp % *cp_heads != 0 || cp / *cp_heads < 2) {
      errors.push_back(BadFactors("cp=" + std::to_string(cp) + " and cp_heads=" + std::to_string(*cp_heads)));
    }
    mesh.cp_heads_ = *cp_heads;
  }
  if (!errors.empty()) return errors;
  return mesh;
}

Result<MeshShape> MeshShape::Parse(std::string_view text) {
  std::vector<std::pair<std::string, int64_t>> axes;
  if (text.empty()) return MeshShape();
  for (const std::string& part : Split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, std::min(equals, part.size()));
    int64_t size = 0;
    int64_t inner = 0;
    const char* const end = part.data() + part.size();
    // Reads a number up to `stop`.
    const auto read = [](const char* begin, const char* stop, int64_t& number) {
      return std::from_chars(begin, stop, number) == std::from_chars_result{stop, std::errc()};
    };
    const char* const begin = part.data() + std::min(equals + 1, part.size());
    const char* const times = name == "cp" ? std::find(begin, end, 'x') : end;
    if (equals == std::string::npos || equals == 0 || name == kCpHeads || !read(begin, times, size) ||
        (times != end && !read(times + 1, end, inner))) {
      return BadMesh("'" + part + "' does not have the form AXIS=SIZE" + (name.starts_with("cp") ? " or cp=RxH" : ""),
                     std::string(text));
    }
    if (times != end) {
      if (inner < 2 || size < 2) return BadFactors(part);
      if (size > kMostRanks / inner) {
        Diagnostic d = BadMesh("the mesh has too many ranks", part);
        d.required = "at most " + std::to_string(kMostRanks) + " ranks";
        return d;
      }
      axes.emplace_back(kCpHeads, inner);
      size *= inner;
    }
    axes.emplace_back(name, size);
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
    out += (out.empty() ? "" : ",") + std::string(moonshard::ToString(axis)) + "=";
    const bool factors = axis == MeshAxis::kCp && cp_heads_ > 1;
    out +=
        factors ? std::to_string(size(axis) / cp_heads_) + "x" + std::to_string(cp_heads_) : std::to_string(size(axis));
  }
  return out.empty() ? "tp=1" : out;
}

std::vector<std::pair<std::string, int64_t>> MeshShape::Sizes() const {
  std::vector<std::pair<std::string, int64_t>> out;
  for (MeshAxis axis : kMeshAxes) {
    if (size(axis) > 1) out.emplace_back(moonshard::ToString(axis), size(axis));
    if (axis == MeshAxis::kCp && cp_heads_ > 1) out.emplace_back(kCpHeads, cp_heads_);
  }
  if (out.empty()) out.emplace_back("tp", 1);
  return out;
}

}  // namespace moonshard
