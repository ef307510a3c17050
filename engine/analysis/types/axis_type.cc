// How a declared layout becomes a type. A layout is about the full tensor and any rank; a type is about the tensor
// that this rank holds, so lengths are local. With q, k and v in one weight of 2048 + 512 + 512 rows on tp=4, layout
// and type are
//
//   packed(0,[2048:heads=32,512:heads=8,512:heads=8])    ->    packed(0, [512, 128, 128]), length 768
//
// and a later split([512, 128, 128]) takes whole parts, where a split at 700 is refused. A shard(0,heads=32) of 2048
// rows notes 32 heads of 64 each, because a view that opens a shard is right at a border of a head and wrong within
// one.
//
// A shard that one rank owns alone (an expert) is a shard like others, whose map has all indices on the owner: a sum
// over its dim is partial, with terms of zeros on the ranks without elements.
#include "engine/analysis/types/axis_type.h"

#include <numeric>

#include "engine/layout/shards.h"

namespace moonshard {

// `length` is not compared: two tensors that meet have the same sizes or broadcast, which the operator itself checks.
bool AxisType::SameAs(const AxisType& other) const {
  if (kind != other.kind) return false;
  if (kind == TypeKind::kPartial) return mean == other.mean;
  if (kind != TypeKind::kShard) return true;
  return dim == other.dim && lead == other.lead;
}

std::string AxisType::ToString() const {
  switch (kind) {
    case TypeKind::kReplicate:
      if (last > 0) return "shared_last(" + std::to_string(last) + ")";
      return outside ? "rows of the batch or a constant" : full ? "replicate" : "shared";
    case TypeKind::kPartial:
      if (last > 0) return "partial in the last " + std::to_string(last) + " features";
      return mean ? "partial mean" : "partial";
    case TypeKind::kOwnRows: return "own rows";
    case TypeKind::kRouted: return "rows of a rank's own experts";
    case TypeKind::kVarying: return "varying";
    case TypeKind::kUnproven: return "unproven";
    case TypeKind::kFaulty: return "faulty";
    case TypeKind::kShard: break;
  }
  std::string out(parts.empty() ? "shard(" : "packed(");
  out.append(std::to_string(dim));
  for (size_t p = 0; p < parts.size(); ++p) out.append(p == 0 ? ", [" : ", ").append(std::to_string(parts[p]));
  out.append(parts.empty() ? ")" : "])");
  if (lead != 1) out += " after " + std::to_string(lead);
  return out;
}

AxisType AxisType::Of(TypeKind kind) {
  AxisType type;
  type.kind = kind;
  return type;
}

AxisType AxisType::OfOwner(int64_t owner) {
  AxisType type = Of(TypeKind::kVarying);
  type.owner = owner;
  return type;
}

AxisType AxisType::Replicate() { return Of(TypeKind::kReplicate); }

AxisType AxisType::Full() {
  AxisType type = Of(TypeKind::kReplicate);
  type.full = true;
  return type;
}

AxisType AxisType::Shared() {
  AxisType type = Of(TypeKind::kReplicate);
  type.shared = true;
  return type;
}

AxisType AxisType::Outside() {
  AxisType type = Of(TypeKind::kReplicate);
  type.outside = true;
  return type;
}

AxisType AxisType::Uniform(int64_t dims) {
  AxisType type = Of(TypeKind::kReplicate);
  type.uniform = dims >= 64 ? ~uint64_t{0} : (uint64_t{1} << dims) - 1;
  return type;
}

AxisType AxisType::Shard(int64_t dim, int64_t length) {
  AxisType type = Of(TypeKind::kShard);
  type.dim = static_cast<int>(dim);
  type.length = length;
  return type;
}

AxisType AxisType::Partial(bool mean) {
  AxisType type = Of(TypeKind::kPartial);
  type.mean = mean;
  return type;
}

namespace {

bool AreUneven(const DimShards& shards) {
  for (int64_t rank = 1; rank < shards.ranks(); ++rank) {
    if (shards.length(rank) != shards.length(0)) return true;
  }
  return false;
}

// The other place of a shard of one element that a view has put at the end of a dim: at the beginning of the next. A
// transposition may have put that elsewhere (`behind`).
bool MoveBehind(AxisType& type, at::IntArrayRef sizes) {
  const auto next = static_cast<size_t>(type.behind >= 0 ? type.behind : type.dim + 1);
  if (!type.is_shard() || type.lead == 1 || type.length != 1 || next >= sizes.size()) return false;
  if (sizes[static_cast<size_t>(type.dim)] != type.lead) return false;
  if (type.map != nullptr) type.map = type.map->Opened(type.lead, 1);
  if (type.map != nullptr) type.map = type.map->Flattened(1, sizes[next]);
  type.dim = static_cast<int>(next);
  type.lead = 1;
  type.behind = -1;
  return true;
}

// The other reading of a shard that a view has opened into one row of several elements, or put into the first of
// several dims of size 1 (rules/views.cc, IsNewDim): a new dim of size 1 in front of the shard.
bool MoveOneOn(AxisType& type, at::IntArrayRef sizes) {
  const auto next = static_cast<size_t>(type.dim) + 1;
  if (!type.is_shard() || type.lead != 1 || type.length != 1 || next >= sizes.size() || sizes[next - 1] != 1)
    return false;
  if (type.inner == 1 ? sizes[next] != 1 : type.behind != type.dim + 1 || sizes[next] != type.inner) return false;
  if (type.map != nullptr) type.map = type.map->Flattened(1, type.inner);
  type.dim += 1;
  type.length = type.inner;
  type.inner = 1;
  type.behind = -1;
  type.heads = 0;
  return true;
}

}  // namespace

AxisType TypeOfLayout(const Layout& layout, at::IntArrayRef shape, int64_t full_size, int64_t ranks, int64_t rank) {
  switch (layout.kind) {
    case LayoutKind::kReplicate: return AxisType::Full();
    case LayoutKind::kShared: {
      if (!layout.is_shared_last() || shape.empty() || layout.last >= shape.back()) return AxisType::Shared();
      AxisType type = AxisType::Replicate();
      type.last = layout.last;
      return type;
    }
    case LayoutKind::kPartial: return AxisType::Partial();
    case LayoutKind::kShard: break;
  }
  const auto dims = static_cast<int64_t>(shape.size());
  const int64_t dim = layout.dim < 0 ? layout.dim + dims : layout.dim;
  if (dim < 0 || dim >= dims) return AxisType::Of(TypeKind::kFaulty);
  AxisType type = AxisType::Shard(dim, shape[static_cast<size_t>(dim)]);
  if (layout.heads > 0 && full_size > 0 && full_size % layout.heads == 0) {
    type.heads = layout.heads;
    type.head = full_size / layout.heads;
  }
  // Local sizes do not show it: rank 0 of 7 rows over two ranks has 4, as it has of 8.
  const auto place = [&](const Layout& sized, int64_t size) {
    const Result<DimShards> shards = DimShards::Make(sized, size, ranks);
    if (!shards.ok() || shards.value().length(rank) != type.length) return;
    type.map = IndexMap::Of(shards.value());
    type.uneven = AreUneven(shards.value());
    if (sized.parts.empty()) return;
    for (const DimShards::LocalPart& part : shards.value().PartsOf(rank)) type.parts.push_back(part.global.length);
  };
  if (layout.owner >= 0) {
    const int64_t size = full_size >= 0 ? full_size : rank == layout.owner ? type.length : -1;
    if (size >= 0) place(layout, size);
    return type.map != nullptr ? type : AxisType::Of(TypeKind::kVarying);
  }
  if (layout.parts.empty()) {
    if (full_size >= 0 || layout.is_plain_shard() || layout.zigzag)
      place(layout, full_size >= 0 ? full_size : type.length * ranks);
    // Two chunks of one length are an even number of elements.
    if (full_size < 0 && layout.zigzag && ranks > 1 && type.length % 2 != 0) type.uneven = true;
    return type;
  }
  Layout sized = layout.has_equal_parts() && full_size >= 0 ? layout.Sized(full_size) : layout;
  const int64_t size = std::accumulate(sized.parts.begin(), sized.parts.end(), int64_t{0},
                                       [](int64_t sum, const Layout::Part& part) { return sum + part.size; });
  place(sized, size);
  // A dim of equal parts whose size is not known: the local shard is equal parts too.
  if (size == 0) type.parts.assign(sized.parts.size(), type.length / static_cast<int64_t>(sized.parts.size()));
  return type;
}

bool MoveToNextReading(AxisType& type, at::IntArrayRef sizes, bool sizes_compared, bool terms) {
  if (MoveBehind(type, sizes)) return true;
  if (!sizes_compared) return false;
  if (MoveOneOn(type, sizes)) return true;
  const bool one = type.is_shard() && type.length == 1 && !type.floating && !type.uneven;
  if (!terms || !one) return false;
  AxisType partial = AxisType::Partial();
  partial.since = type.since;
  type = partial;
  return true;
}

}  // namespace moonshard
