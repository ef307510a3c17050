// Operators that concatenate tensors.
//
// Shards pass through a concatenation along another dim, but a replicated tensor among them must be the same along the
// sharded dim. Along the sharded dim each rank joins its own shards, so the result is not a shard of the joined tensor
// but the shards of its parts one after the other: packed, which only a slice or split at the borders of the parts may
// take apart. Zeros of the sizes of a shard (zeros_like) are a shard there, since any part of zeros is zeros.
#include <optional>
#include <utility>

#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

// Of replicated tensors, those dims along which the elements of each are equal, other than the concatenated one.
void OfEqual(const Operands& o, bool stack, int64_t dim, AxisType& result) {
  for (int64_t d = 0; d < o.made_dims() && d < 64; ++d) {
    if (d == dim) continue;
    const int64_t own = stack && d > dim ? d - 1 : d;
    bool same = true;
    bool local = false;
    for (size_t i = 0; i < o.size(); ++i) {
      if (!stack && o.dims(i) == 1 && o.sizes(i)[0] == 0) continue;
      same = same && o.type(i).is_replicate() && o.type(i).uniform_along(own);
      local = local || o.type(i).local_along(own);
    }
    if (same) result.uniform |= uint64_t{1} << d;
    if (same && local) result.local |= uint64_t{1} << d;
  }
}

// What all groups of one choice make, joined in their order; nullptr: they are other tensors.
std::shared_ptr<const Choice> JoinedGroups(const Operands& o, int64_t dim) {
  const std::shared_ptr<const Choice>& first = o.type(0).chosen;
  if (first == nullptr || first->of == nullptr || first->groups != o.size()) return nullptr;
  for (size_t i = 0; i < o.size(); ++i) {
    const AxisType& type = o.type(i);
    const bool next = type.is_shard() && type.dim == dim && type.chosen != nullptr && type.chosen->of == first->of &&
                      type.chosen->group == i && type.chosen->groups == o.size();
    if (!next) return nullptr;
  }
  return first->of;
}

// Values that differ by rank, joined with others: what a part of them is to the ranks, the terms of a sum or the same
// number, is not known of the whole. Nothing if all are of one kind, where zeros are of any.
std::optional<AxisTypes> JoinedByRank(Operands& o, bool stack) {
  bool varying = false;
  bool other = false;
  for (size_t i = 0; i < o.size(); ++i) {
    const AxisType& type = o.type(i);
    if (!stack && o.dims(i) == 1 && o.sizes(i)[0] == 0) continue;
    if (type.is(TypeKind::kOwnRows)) return AxisTypes{AxisType::Of(type.kind)};
    varying = varying || type.is(TypeKind::kVarying);
    other = other || !(type.is(TypeKind::kVarying) || (type.is_replicate() && type.zero));
  }
  if (!varying) return std::nullopt;
  if (other) return AxisTypes{o.Unproven("values that differ between ranks are joined with values that do not")};
  return AxisTypes{AxisType::Of(TypeKind::kVarying)};
}

AxisTypes Cat(Operands& o) {
  const bool stack = o.name() == "stack";
  if (std::optional<AxisTypes> joined = JoinedByRank(o, stack)) return *std::move(joined);
  const int64_t dim = o.Dim(1, o.made_dims());
  AxisType result = AxisType::Replicate();
  bool cut = false;
  size_t partial = 0;
  bool alike = true;  // the partial ones
  size_t other = 0;   // not a shard, not empty
  bool uniform = true;
  std::vector<int64_t> parts;
  std::vector<IndexMapPtr> maps;
  for (size_t i = 0; i < o.size(); ++i) {
    AxisType type = o.type(i);
    const bool empty = !stack && o.dims(i) == 1 && o.sizes(i)[0] == 0;  // what at::cat leaves out
    if (empty) continue;
    if (type.is_partial()) {
      alike = alike && (!result.is_partial() || (type.SameAs(result) && type.last == result.last)) &&
              !(type.is_mixed() && dim + 1 == o.made_dims());
      ++partial;
      result = type;
      continue;
    }
    const bool like_shard = !stack && type.is_replicate() && type.zero && type.map != nullptr && type.dim == dim &&
                            type.uniform_along(dim) &&
                            o.sizes(i)[static_cast<size_t>(dim)] == type.map->length(o.rank());
    if (like_shard && o.Any(TypeKind::kShard)) {
      const IndexMapPtr map = type.map;
      type = AxisType::Shard(dim, map->length(o.rank()));
      type.map = map;
    } else if (!stack && type.is_replicate() && type.local_along(dim) && o.size() > 1) {
      // One after the other, constants that are as long as a shard are no longer equal elements.
      type = AxisType::Shard(dim, o.sizes(i)[static_cast<size_t>(dim)]);
    }
    if (!type.is_shard()) {
      ++other;
      uniform = uniform && type.uniform_along(dim);
      continue;
    }
    if (stack && type.dim >= dim) ++type.dim;
    if (cut && !type.SameAs(result)) return {o.Fault("shards along different dims are concatenated")};
    type.uneven = type.uneven || result.uneven;
    const bool along = !stack && type.dim == dim;
    if (cut && !along && !MeetMaps(o, type, result)) {
      return {AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty)};
    }
    cut = true;
    result = type;
    if (along) {
      maps.push_back(type.map);
      if (type.parts.empty()) parts.push_back(type.length);
      parts.insert(parts.end(), type.parts.begin(), type.parts.end());
    }
  }
  // The gradient of features that are full and features that are shared, as the backward of split joins it.
  if (partial == 1 && other == 1 && !cut && o.size() == 2 && o.type(1).is_partial() && !o.type(1).is_mixed() &&
      !stack && dim + 1 == o.made_dims() && o.backward()) {
    AxisType mixed = o.type(1);
    mixed.last = o.sizes(1).back();
    return {mixed};
  }
  if (partial > 0) {
    if (cut || other > 0)
      return {
          o.Fault("a partial tensor is concatenated with a tensor that is not partial; reduce the partial tensor first",
                  SuggestedFix::kMakeSum)};
    if (!alike) return {o.Unproven("no rule for partial tensors of different kinds")};
    return {result};
  }
  if (!cut) {
    if (uniform && o.size() == 1) {
      result.uniform = o.type(0).uniform;
      result.local = o.type(0).local;
    } else {
      OfEqual(o, stack, dim, result);
    }
    return {result};
  }
  if (other > 0 && result.dim == dim)
    return {o.Fault(Phrase("shards are concatenated with replicated tensors along dim ", dim, ", which is sharded"))};
  for (size_t i = 0; i < o.size(); ++i) {
    const AxisType& type = o.type(i);
    const int64_t own = stack && result.dim > dim ? result.dim - 1 : result.dim;
    if (type.is_replicate() && o.dims(i) > own && !type.uniform_along(own)) {
      return {o.Fault(Phrase("a replicated tensor is concatenated with tensors that are sharded along dim ", own,
                             ", which is not the concatenated dim; each rank needs its shard of the replicated tensor"),
                      SuggestedFix::kTakeShard)};
    }
  }
  // Along the sharded dim each rank joins its own shards: a fused dim.
  if (parts.size() > 1) {
    if (result.lead != 1)
      return {o.Unproven(Phrase("shards are concatenated along dim ", dim,
                                ", which a view flattened from an unsharded dim and a sharded dim"))};
    result.length = o.made()[static_cast<size_t>(dim)];
    result.parts = parts;
    result.map = IndexMap::Joined(maps);
    result.heads = 0;
    if (result.chosen != nullptr) result.chosen = std::make_shared<const Choice>();
  }
  if (const std::shared_ptr<const Choice> whole = stack ? nullptr : JoinedGroups(o, dim); whole != nullptr) {
    result.parts.clear();
    result.chosen = whole;
  }
  return {result};
}

}  // namespace

void AddJoinRules(RuleTable& table) { table.AddAten({"cat", "stack", "concat"}, Cat); }

}  // namespace moonshard
