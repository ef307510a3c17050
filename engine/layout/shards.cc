// A plain dim is one part. Every part is sharded by itself, and a rank's shard is the concatenation of its shards of
// the parts: so the fused q, k and v of attention, or gate and up of an MLP, each lose the same heads or columns on a
// rank, and the rank's fused output splits at the same places as the full one does, in proportion.
//
// A zigzag dim has 2n chunks. Rank r holds chunk r and chunk 2n - 1 - r: in causal attention a later token costs more,
// and the two chunks together cost the same on every rank.
//
// On an axis of two factors the rank's group takes the zigzag shard, and the rank its part of the two chunks behind
// each other. So in a group the shards of all its ranks, one behind the other, are the group's tokens in their order.
//
// With fewer heads than ranks (key and value heads of grouped-query attention) consecutive ranks hold the same head:
// query heads are dealt to ranks in order, and the query heads that use one key head are consecutive.
#include "engine/layout/shards.h"

#include <algorithm>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// One part of the dim, [part_begin, part_begin + size), sharded for one rank.
DimShards::LocalPart ShardPart(int64_t part_begin, const Layout::Part& part, int64_t ranks, int64_t rank,
                               int64_t owner) {
  DimShards::LocalPart local;
  if (owner >= 0) {
    local.global = {part_begin, rank == owner ? part.size : 0};
    return local;
  }
  int64_t begin = 0;
  int64_t end = 0;
  if (part.heads > 0 && part.heads < ranks) {
    local.replicas = ranks / part.heads;
    local.first_replica = rank % local.replicas == 0;
    const int64_t head_size = part.size / part.heads;
    begin = rank / local.replicas * head_size;
    end = begin + head_size;
  } else {
    // torch.chunk. With heads that the ranks divide this is a multiple of the head.
    const int64_t chunk = (part.size + ranks - 1) / ranks;
    begin = std::min(part.size, chunk * rank);
    end = std::min(part.size, chunk * (rank + 1));
  }
  local.global = {part_begin + begin, end - begin};
  return local;
}

// The early and the late chunk of a zigzag dim.
std::vector<DimShards::LocalPart> Chunks(int64_t size, int64_t ranks, int64_t rank) {
  const int64_t chunk = (size + 2 * ranks - 1) / (2 * ranks);
  std::vector<DimShards::LocalPart> out;
  int64_t local_begin = 0;
  for (const int64_t number : {rank, 2 * ranks - 1 - rank}) {
    const int64_t begin = std::min(size, chunk * number);
    const int64_t length = std::min(size, begin + chunk) - begin;
    out.push_back({{begin, length}, local_begin});
    local_begin += length;
  }
  return out;
}

// The part of the chunks of its group that a rank of a group of `inner` ranks has: as torch.chunk cuts them, as if they
// were one dim.
std::vector<DimShards::LocalPart> ChunksInGroup(int64_t size, int64_t ranks, int64_t rank, int64_t inner) {
  std::vector<DimShards::LocalPart> out = Chunks(size, ranks / inner, rank / inner);
  const int64_t of_group = out.back().local_begin + out.back().global.length;
  const int64_t each = (of_group + inner - 1) / inner;
  const int64_t first = std::min(of_group, each * (rank % inner));
  const int64_t last = std::min(of_group, first + each);
  int64_t local_begin = 0;
  for (DimShards::LocalPart& part : out) {
    const int64_t begin = std::clamp(part.local_begin, first, last);
    const int64_t end = std::clamp(part.local_begin + part.global.length, first, last);
    part.global = {part.global.begin + begin - part.local_begin, end - begin};
    if (part.global.length == 0) part.global.begin = std::min(part.global.begin, size);
    part.local_begin = local_begin;
    local_begin += part.global.length;
  }
  return out;
}

std::optional<Diagnostic> HeadsError(const Layout::Part& part, int64_t ranks) {
  if (part.heads == 0) return std::nullopt;
  if (part.heads < 0 || part.size % part.heads != 0) {
    Diagnostic d = MakeDiagnostic(Finding::kHeadsDoNotFit, "a dim of " + std::to_string(part.size) +
                                                               " elements is not divisible into " +
                                                               std::to_string(part.heads) + " heads");
    d.declared = "heads = " + std::to_string(part.heads);
    d.required = "a number of heads that divides " + std::to_string(part.size);
    return d;
  }
  if (part.heads % ranks == 0 || ranks % part.heads == 0) return std::nullopt;
  std::vector<std::string> legal;
  for (int64_t size : LegalAxisSizes(part.heads, std::min(std::max(ranks, part.heads), kMostRanks / 2) * 2)) {
    legal.push_back(std::to_string(size));
  }
  Diagnostic d = MakeDiagnostic(
      Finding::kHeadsDoNotFit, std::to_string(part.heads) + " heads do not fit on " + std::to_string(ranks) + " ranks");
  d.declared = "heads = " + std::to_string(part.heads) + " over " + std::to_string(ranks) + " ranks";
  d.required = "an axis size that divides the number of heads or is a multiple of it";
  d.help = "legal sizes: " + Join(legal, ", ");
  return d;
}

}  // namespace

Result<DimShards> DimShards::Make(const Layout& layout, int64_t size, int64_t ranks) {
  Check(layout.is_shard(), "shards of a layout that is not a shard");
  std::vector<Layout::Part> parts = layout.parts;
  if (parts.empty()) parts.push_back({size, layout.heads});
  Check(layout.inner >= 1 && ranks % layout.inner == 0, "an inner factor that does not divide the ranks of its axis");
  // The ranks over which a dim is sharded that is not in zigzag.
  const int64_t over = layout.inner > 1 ? layout.inner : ranks;
  int64_t sum = 0;
  for (const Layout::Part& part : parts) {
    if (part.size < 0 || __builtin_add_overflow(sum, part.size, &sum)) {
      Diagnostic d = MakeDiagnostic(Finding::kPackedDoesNotFit,
                                    "a packed part cannot have " + std::to_string(part.size) + " elements");
      d.declared = layout.ToText();
      d.required = "sizes of at least 0 that add up to " + std::to_string(size);
      return d;
    }
    if (std::optional<Diagnostic> error = HeadsError(part, over)) return *error;
  }
  if (sum != size) {
    Diagnostic d =
        MakeDiagnostic(Finding::kPackedDoesNotFit, "the packed sizes add up to " + std::to_string(sum) +
                                                       ", but the dim has " + std::to_string(size) + " elements");
    d.declared = layout.ToText();
    d.required = "sizes that add up to " + std::to_string(size);
    return d;
  }

  const int64_t owner = ranks == 1 ? std::min<int64_t>(layout.owner, 0) : layout.owner;
  if (owner >= ranks) {
    Diagnostic d =
        MakeDiagnostic(Finding::kNoSuchOwner, "owner " + std::to_string(layout.owner) + " is not one of the " +
                                                  std::to_string(ranks) + " ranks of the axis");
    d.declared = layout.ToText();
    d.required = "an owner from 0 to " + std::to_string(ranks - 1);
    return d;
  }

  DimShards out;
  out.size_ = size;
  out.intervals_.resize(static_cast<size_t>(ranks));
  out.parts_.resize(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto& intervals = out.intervals_[static_cast<size_t>(rank)];
    std::vector<LocalPart>& local_parts = out.parts_[static_cast<size_t>(rank)];
    if (layout.zigzag) local_parts = ChunksInGroup(size, ranks, rank, layout.inner);
    int64_t part_begin = 0;
    int64_t local_begin = 0;
    for (const Layout::Part& part : parts) {
      if (layout.zigzag) break;
      LocalPart local = ShardPart(part_begin, part, over, rank % over, owner);
      local.local_begin = local_begin;
      local_begin += local.global.length;
      part_begin += part.size;
      local_parts.push_back(local);
    }
    for (const LocalPart& local : local_parts) {
      out.replicas_ = std::max(out.replicas_, local.replicas);
      if (local.global.length == 0) continue;
      if (!intervals.empty() && intervals.back().begin + intervals.back().length == local.global.begin) {
        intervals.back().length += local.global.length;
      } else {
        intervals.push_back(local.global);
      }
    }
  }
  out.plain_ =
      parts.size() == 1 && out.replicas_ == 1 && layout.owner < 0 && layout.inner == 1 && !(layout.zigzag && ranks > 1);
  return out;
}

int64_t DimShards::length(int64_t rank) const {
  int64_t sum = 0;
  for (const Interval& interval : of(rank)) sum += interval.length;
  return sum;
}

int64_t DimShards::max_length() const {
  int64_t most = 0;
  for (int64_t rank = 0; rank < ranks(); ++rank) most = std::max(most, length(rank));
  return most;
}

std::vector<DimShards::LocalPart> DimShards::PartsOf(int64_t rank) const { return parts_[static_cast<size_t>(rank)]; }

std::vector<int64_t> LegalAxisSizes(int64_t heads, int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= most; ++size) {
    if (heads % size == 0 || size % heads == 0) sizes.push_back(size);
  }
  return sizes;
}

}  // namespace moonshard
