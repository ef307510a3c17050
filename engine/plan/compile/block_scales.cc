// How many numbers a block has is not stored beside it (quantization_config may say it, or not): it follows from the
// two sizes. Blocks are powers of two, and the last one of a dim may be shorter: 576 rows with 5 factors have blocks of
// 128, not of 115.2. The shards of the scales are then those layouts that a dim of blocks can have, tried in turn
// against the blocks that each rank must have: heads may be smaller than a block (64 rows, two heads per block) or
// larger.
#include "engine/plan/compile/block_scales.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/text.h"
#include "engine/layout/shards.h"

namespace moonshard {
namespace {

bool IsFloat8(DType dtype) {
  constexpr std::array kFloats = {DType::kF8E5M2, DType::kF8E4M3, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz};
  return std::ranges::find(kFloats, dtype) != kFloats.end();
}

int64_t Blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

// Numbers of a block, where `size` of them have so many factors; 0 where no block has that.
int64_t BlockOf(int64_t size, int64_t factors) {
  if (factors == size) return 1;
  for (int64_t block = 2; block < size; block *= 2) {
    if (Blocks(size, block) == factors) return block;
  }
  return factors > 0 && size % factors == 0 ? size / factors : 0;
}

// The blocks of each rank; none where a shard begins or ends within one.
std::optional<std::vector<std::vector<Interval>>> BlocksOf(const DimShards& shards, int64_t block) {
  std::vector<std::vector<Interval>> out;
  for (int64_t rank = 0; rank < shards.ranks(); ++rank) {
    std::vector<Interval>& own = out.emplace_back();
    for (const Interval& one : shards.of(rank)) {
      const int64_t end = one.begin + one.length;
      if (one.begin % block != 0 || (end % block != 0 && end != shards.size())) return std::nullopt;
      own.push_back({one.begin / block, Blocks(end, block) - one.begin / block});
    }
  }
  return out;
}

std::vector<Layout> Candidates(const Layout& weight, int64_t block, int64_t factors) {
  if (weight.owner >= 0) return {weight};
  if (weight.parts.empty()) {
    return {Layout::Shard(weight.dim, weight.heads), Layout::Shard(weight.dim, factors), Layout::Shard(weight.dim)};
  }
  Layout as_heads = weight;
  Layout plain = weight;
  for (size_t i = 0; i < weight.parts.size(); ++i) {
    const int64_t of_part = Blocks(weight.parts[i].size, block);
    as_heads.parts[i].size = plain.parts[i].size = of_part;
    plain.parts[i].heads = of_part;
  }
  return {as_heads, plain};
}

std::optional<Layout> LayoutOfScales(const Layout& weight, int64_t size, int64_t factors, int64_t ranks) {
  const int64_t block = BlockOf(size, factors);
  const Result<DimShards> shards = DimShards::Make(weight, size, ranks);
  if (block == 0 || !shards.ok()) return std::nullopt;
  const auto blocks = BlocksOf(shards.value(), block);
  if (!blocks) return std::nullopt;
  for (const Layout& layout : Candidates(weight, block, factors)) {
    const Result<DimShards> made = DimShards::Make(layout, factors, ranks);
    if (!made.ok()) continue;
    bool same = made.value().replicas() == shards.value().replicas();
    for (int64_t rank = 0; same && rank < ranks; ++rank) {
      same = made.value().of(rank) == (*blocks)[static_cast<size_t>(rank)];
    }
    if (same) return layout;
  }
  return std::nullopt;
}

}  // namespace

int64_t WeightOfScales(const ModuleTree::Signature& signature, size_t parameter) {
  const Parameter& scales = signature[parameter];
  int64_t only = -1;
  for (size_t i = 0; i < signature.size(); ++i) {
    const Parameter& weight = signature[i];
    if (!IsFloat8(weight.dtype)) continue;
    const bool named = scales.name == weight.name + "_scale_inv" || scales.name == weight.name + "_scale";
    if (named && scales.shape.size() <= weight.shape.size()) return static_cast<int64_t>(i);
    only = only == -1 ? static_cast<int64_t>(i) : -2;
  }
  const bool one_number = scales.elements() == 1 && std::string_view(scales.name).ends_with("_scale");
  return one_number && only >= 0 ? only : -1;
}

Placement PlacementOfScales(const Parameter& scales, const Parameter& weight, const Placement& placement,
                            const Landing& landing, const MeshShape& mesh, Diagnostics& diagnostics) {
  Placement out;
  for (MeshAxis axis : kMeshAxes) {
    const Layout& layout = placement[axis];
    const auto dim = static_cast<size_t>(layout.dim);
    // A scale for each row has no dim of columns.
    if (!layout.is_shard() || dim >= scales.shape.size() || (scales.shape[dim] == 1 && layout.owner < 0)) continue;
    const std::optional<Layout> made = LayoutOfScales(layout, weight.shape[dim], scales.shape[dim], mesh.size(axis));
    if (made) {
      out[axis] = *made;
      continue;
    }
    const int64_t block = BlockOf(weight.shape[dim], scales.shape[dim]);
    const std::string of_module = "' of '" + landing.module->path + "'";
    Diagnostic d = MakeDiagnostic(
        Finding::kStyleDoesNotFit,
        block == 0
            ? "no block size fits the shapes of '" + weight.name + "' and of its scales '" + scales.name + of_module
            : "a shard of '" + weight.name + of_module +
                  " contains a part of a quantization block; each block has one scale in '" + scales.name + "'",
        landing.source);
    d.path = landing.module->path;
    d.declared = weight.name + " " + ShapeToString(weight.shape) + " = " + layout.ToText() + " over " +
                 std::to_string(mesh.size(axis)) + " ranks; " + scales.name + " " + ShapeToString(scales.shape);
    d.required = block == 0 ? "a number of scales that divides the dim into blocks of one size"
                            : "shards that begin and end at multiples of " + std::to_string(block);
    // The shapes are those of the checkpoint, whatever the number of ranks is.
    d.help = std::string(block == 0 ? "" : "another number of ranks; or ") +
             "replicated {} for these modules; or a layout in params for '" + scales.name +
             "' that gives each rank the scales of its shard";
    diagnostics.push_back(std::move(d));
  }
  return out;
}

}  // namespace moonshard
