#include "engine/graph/size_rules/dims.h"

#include <algorithm>
#include <utility>

namespace moonshard::graph {

namespace {
using Kind = SizeConflict::Kind;
}  // namespace

std::string SizeText(const LocalDim& dim) {
  return dim.is_sharded() ? std::to_string(dim.local) + " of " + std::to_string(dim.full) : std::to_string(dim.full);
}

std::string SizeText(const LocalNumber& number) {
  if (!number.known()) return "?";
  return number.follows_shard() ? std::to_string(*number.local) + " of " + std::to_string(*number.full)
                                : std::to_string(*number.full);
}

std::string SizesText(std::span<const LocalDim> dims) {
  std::string text;
  for (const LocalDim& dim : dims) text += (text.empty() ? "[" : ", ") + SizeText(dim);
  return text.empty() ? "[]" : text + "]";
}

LocalDim Resized(const LocalDim& dim, int64_t full, int64_t local) {
  LocalDim out = dim;
  out.full = full;
  out.local = local;
  out.parts.clear();
  if (!out.is_sharded()) out.origin = LocalDim::kNone;
  return out;
}

bool AnySharded(const Dims& dims) { return std::ranges::any_of(dims, &LocalDim::is_sharded); }

int64_t PartCount(const LocalDim& dim) {
  if (!dim.in_order) return 0;
  if (dim.parts.empty()) return 1;
  for (const LocalDim::Part& part : dim.parts) {
    if (!(part == dim.parts.front())) return 0;
  }
  return static_cast<int64_t>(dim.parts.size());
}

void SetParts(LocalDim& dim, int64_t count) {
  dim.parts.clear();
  if (count <= 1) return;
  dim.in_order = count <= kMostParts && dim.full % count == 0 && dim.local % count == 0;
  if (!dim.in_order) return;
  dim.parts.assign(static_cast<size_t>(count), {dim.full / count, dim.local / count});
}

namespace {

// The elements of a fused dim that the rank has if it has the first of each part: the ends of its runs in the full dim.
std::vector<std::pair<int64_t, int64_t>> Runs(const LocalDim& dim) {
  std::vector<LocalDim::Part> parts = dim.parts;
  if (parts.empty()) parts.push_back({dim.full, dim.local});
  std::vector<std::pair<int64_t, int64_t>> runs;
  int64_t at = 0;
  for (const LocalDim::Part& part : parts) {
    if (part.local > 0 && !runs.empty() && runs.back().second == at) {
      runs.back().second = at + part.local;
    } else if (part.local > 0) {
      runs.emplace_back(at, at + part.local);
    }
    at += part.full;
  }
  return runs;
}

}  // namespace

bool HaveSameElements(const LocalDim& a, const LocalDim& b) {
  if (!a.is_sharded() || !b.is_sharded() || a.full != b.full || !a.in_order || !b.in_order) return true;
  return a.parts == b.parts || Runs(a) == Runs(b);
}

bool ScaleParts(const LocalDim& from, LocalDim& dim) {
  dim.parts.clear();
  for (const LocalDim::Part& part : from.parts) {
    const int64_t full = part.full * dim.full;
    const int64_t local = part.local * dim.full;
    if (full % from.full != 0 || local % from.full != 0) return false;
    dim.parts.push_back({full / from.full, local / from.full});
  }
  return true;
}

bool SameParts(NodeSizes& n, const LocalDim& a, const LocalDim& b, std::string_view what) {
  if (HaveSameElements(a, b)) return true;
  const auto text = [](const LocalDim& dim) {
    if (dim.parts.size() < 2) return std::string("as a whole");
    return "in " + std::to_string(dim.parts.size()) + (PartCount(dim) == 0 ? " parts of unequal sizes" : " parts");
  };
  n.Conflict(Kind::kOperands,
             std::string(what) + " have different elements on a rank: " + SizeText(a) + ", sharded " + text(a) +
                 ", and " + SizeText(b) + ", sharded " + text(b),
             b.local, a.local, &a, &b);
  return false;
}

void NeedsFullDim(NodeSizes& n, const LocalDim& sharded) {
  n.Conflict(Kind::kNeedsFullDim,
             "its results depend on all elements of a dim of size " + SizeText(sharded) +
                 ", of which a rank has only its shard",
             sharded.full, sharded.local, &sharded);
}

void CrossesShards(NodeSizes& n, const LocalDim& sharded, const char* what) {
  n.Conflict(
      Kind::kCrossesShards,
      std::string(what) + " of the full dim, but a rank has only its shard of the dim (" + SizeText(sharded) + ")",
      sharded.full, sharded.local, &sharded);
}

void RefuseTwoShards(NodeSizes& n, const LocalDim& a, const LocalDim& b) {
  n.Conflict(Kind::kOperands,
             "its result would be sharded along two dims (" + SizeText(a) + " and " + SizeText(b) +
                 "), of which no rank has the elements of one rank's shard of the first and of another's of the second",
             b.local, a.local, &a, &b);
}

std::optional<Dims> Broadcast(NodeSizes& n, const std::vector<const LocalTensor*>& operands) {
  size_t rank = 0;
  for (const LocalTensor* operand : operands) rank = std::max(rank, operand->dims.size());
  Dims out(rank);
  for (size_t back = 1; back <= rank; ++back) {
    LocalDim& made = out[rank - back];
    bool first = true;
    for (const LocalTensor* operand : operands) {
      if (operand->dims.size() < back) continue;
      const LocalDim& dim = operand->dims[operand->dims.size() - back];
      if (dim.full == 1 && !dim.is_sharded()) continue;
      if (!first && made.full != dim.full && (made.full == 1 || dim.full == 1)) {
        // One element that only one rank has, beside a dim of more.
        NeedsFullDim(n, dim.full == 1 ? dim : made);
        return std::nullopt;
      }
      if (first) {
        made = dim;
        first = false;
        continue;
      }
      if (!n.Agree(made, dim, "in a dim that must be equal, two operands")) return std::nullopt;
      if (made.origin < 0) made.origin = dim.origin;
      if (made.integer_at < 0) made.integer_at = dim.integer_at;
      if (made.parts.empty()) made.parts = dim.parts;
    }
  }
  return out;
}

LocalTensor Front(const LocalTensor& tensor, size_t count) {
  LocalTensor out;
  out.known = true;
  out.dims.assign(tensor.dims.begin(), tensor.dims.end() - static_cast<std::ptrdiff_t>(count));
  return out;
}

}  // namespace moonshard::graph
