#include "engine/analysis/types/rules/combine.h"

#include <algorithm>
#include <array>
#include <string_view>

// The type of tensors that are combined element by element. The order of the checks matters: partial first, because the
// operator's linearity determines what may be combined with a partial tensor; then values that no layout describes;
// then shards. A replicated tensor may be combined with shards only if it is the same along the sharded dim (a bias of
// size 1, zeros, an expanded dim): otherwise its elements at local indices belong to a different element of the shard
// on each rank.
//
// Partial: f(a1 + .. + an) = f(a1) + .. + f(an) holds only for linear f: add of partial tensors, mul of a partial
// tensor and a replicated factor. x + b with x partial adds b once per rank; zeros are the only replicated value that
// may be added.
namespace moonshard {
namespace {

// Whether the value is the same along dim `d` of a result of `made` dims.
bool SameAlong(const Meeting& tensor, int64_t d, int64_t made) {
  const int64_t own = d - (made - static_cast<int64_t>(tensor.sizes.size()));
  return own < 0 || tensor.sizes[static_cast<size_t>(own)] == 1 || tensor.type->uniform_along(own);
}

AxisType Partials(Operands& o, c10::ArrayRef<Meeting> tensors, Dependence dependence) {
  size_t count = 0;
  size_t zeros = 0;
  const Meeting* first = nullptr;
  for (const Meeting& tensor : tensors) {
    zeros += tensor.type->zero ? 1 : 0;
    if (tensor.type->is_partial() && ++count == 1) first = &tensor;
  }
  for (const Meeting& tensor : tensors) {
    if (tensor.type->is_shard() || tensor.type->is(TypeKind::kVarying) || tensor.type->is(TypeKind::kOwnRows)) {
      return o.Fault(tensor.type->is_shard()
                         ? "a partial tensor is combined with shards; reduce the partial tensor first"
                         : "a partial tensor is combined with values that differ between ranks; reduce the partial "
                           "tensor first",
                     SuggestedFix::kMakeSum);
    }
  }
  switch (dependence) {
    case Dependence::kLinear: {
      // Gradients of the first features, and of the last ones, of which only the latter are partial.
      const auto in_front = [&](const Meeting& tensor) {
        return &tensor == first || (tensor.type->is_replicate() && tensor.type->zeros_behind >= first->type->last);
      };
      if (count == 1 && first->type->is_mixed() && std::ranges::all_of(tensors, in_front)) return *first->type;
      const auto other_mean = [&](const Meeting& tensor) {
        return tensor.type->is_partial() && tensor.type->mean != first->type->mean;
      };
      if (std::ranges::any_of(tensors, other_mean)) return o.Unproven("a partial mean is combined with a partial sum");
      if (count + zeros == tensors.size()) return *first->type;
      return o.Fault(
          o.name() == "masked_fill"
              ? "a partial tensor is filled with a value other than the number 0, and the value would be counted once "
                "per rank; reduce the partial tensor first"
              : "a partial tensor is added to a replicated tensor, and the replicated tensor would be counted once per "
                "rank; reduce the partial tensor first",
          SuggestedFix::kMakeSum);
    }
    case Dependence::kMultilinear:
      if (count == 1) return *first->type;
      return o.Fault("two partial tensors are multiplied; reduce one of them first", SuggestedFix::kMakeSum);
    case Dependence::kAny: break;
  }
  return o.Fault("a nonlinear operator is applied to a partial tensor; reduce the tensor first",
                 SuggestedFix::kMakeSum);
}

}  // namespace

// A backward uses the indices of the forward, which were compared there, and an optimizer uses those of the gradient.
// Of two shards whose full tensors have the ranks' elements one after the other, elements match if they do on each
// rank.
bool MeetMaps(Operands& o, AxisType& into, const AxisType& other) {
  if (into.map != nullptr && other.map != nullptr) {
    const bool other_size = into.map->size() != other.map->size();
    if (!(other_size && o.backward()) && !Corresponds(*into.map, *other.map)) {
      o.Fault(Phrase("shards of dim ", into.dim, " that hold different elements are combined: in one operand ") +
              into.map->ToString() + "; in the other operand " + other.map->ToString());
      return false;
    }
    // The gradient of key heads is computed from the gradients of their queries, whose features are flattened with
    // them.
    if (other_size && o.backward()) {
      into.map = nullptr;
    } else if (other.map->size() > into.map->size()) {
      into.map = other.map;
    }
    return true;
  }
  const bool chosen = into.chosen != nullptr || other.chosen != nullptr;
  // One element would be broadcast to the elements that another rank has of the other tensor.
  const bool in_order = into.is_in_order() && other.is_in_order() && into.length != 1 && other.length != 1;
  const bool matches = chosen && (into.chosen == other.chosen || in_order);
  const bool passed_over = matches || into.of_gradient || other.of_gradient;
  if (!o.backward() && !passed_over) {
    o.Unproven(Phrase("it is not known which elements of dim ", into.dim, " each rank holds"));
    return false;
  }
  into.map = nullptr;
  if (into.chosen == nullptr) into.chosen = other.chosen;
  return true;
}

namespace {

// A shard of flattened dims, of which one type has `lead` dims in front that the other has lost (values that were
// written at the indices of nonzero): with equal maps both are the same. Of a gradient without a map the other's map
// must be of that form.
void AlignLeads(const Operands& o, AxisType& a, AxisType& b) {
  if (!a.is_shard() || !b.is_shard() || a.dim != b.dim || a.lead == b.lead) return;
  AxisType& flat = a.lead == 1 ? a : b;
  const AxisType& open = a.lead == 1 ? b : a;
  if (flat.lead != 1 || flat.length != open.lead * open.length || !flat.parts.empty()) return;
  const bool both = flat.map != nullptr && open.map != nullptr;
  const bool same = both ? *flat.map == *open.map
                         : o.backward() && (flat.map == nullptr || flat.map->Opened(open.lead, 1) != nullptr);
  if (!same) return;
  flat.lead = open.lead;
  flat.length = open.length;
}

}  // namespace

namespace {

// Whether an operator of a forward makes other values of looked up rows than masking makes, or the opposite of a mask.
bool ChangesOwnRows(const Operands& o) {
  if (o.backward()) return false;
  if (o.name() == "logical_not" || o.name() == "bitwise_not") return true;
  constexpr std::array<std::string_view, 9> kKeep = {"masked_fill", "clone",      "_to_copy",   "detach", "alias",
                                                     "copy",        "contiguous", "lift_fresh", "to"};
  if (std::ranges::find(kKeep, o.name()) != kKeep.end()) return false;
  for (size_t i = 0; i < o.size(); ++i) {
    if (o.type(i).is(TypeKind::kOwnRows) && at::isFloatingType(o.dtype(i))) return true;
  }
  return false;
}

}  // namespace

AxisType Meet(Operands& o, c10::ArrayRef<Meeting> tensors, int64_t made, Dependence dependence) {
  AxisType result = AxisType::Replicate();
  bool cut = false;
  bool varying = false;
  bool own_rows = false;
  bool partial = false;
  for (const Meeting& tensor : tensors) {
    const AxisType& type = *tensor.type;
    partial = partial || type.is_partial();
    varying = varying || type.is(TypeKind::kVarying);
    own_rows = own_rows || type.is(TypeKind::kOwnRows);
    if (!type.is_shard()) continue;
    AxisType here = type;
    const auto shift = static_cast<int>(made - static_cast<int64_t>(tensor.sizes.size()));
    here.dim += shift;
    if (shift != 0) here.behind = -1;
    if (cut) AlignLeads(o, here, result);
    if (cut && !here.SameAs(result))
      return o.Fault(Phrase("shards along different dims are combined: ", here) + " and " + result.ToString());
    if (cut && !MeetMaps(o, here, result))
      return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
    here.uneven = here.uneven || result.uneven;
    cut = true;
    result = here;
  }
  if (partial) return Partials(o, tensors, dependence);
  if (own_rows && ChangesOwnRows(o)) {
    return o.Unproven(
        "rows of this rank are changed before those of other ranks are masked, or their mask is negated: what one rank "
        "computes has no such operator");
  }
  if (own_rows) return AxisType::Of(cut || varying ? TypeKind::kVarying : TypeKind::kOwnRows);
  if (varying) return AxisType::Of(TypeKind::kVarying);
  if (cut) {
    for (const Meeting& tensor : tensors) {
      if (!tensor.type->is_replicate() || SameAlong(tensor, result.dim, made)) continue;
      return o.Fault(Phrase("a replicated tensor is combined with shards along dim ", result.dim,
                            "; each rank needs its shard of the replicated tensor"),
                     SuggestedFix::kTakeShard);
    }
    return result;
  }
  for (int64_t d = 0; d < made && d < 64; ++d) {
    bool same = true;
    bool local = false;
    for (const Meeting& tensor : tensors) {
      same = same && SameAlong(tensor, d, made);
      const int64_t own = d - (made - static_cast<int64_t>(tensor.sizes.size()));
      local = local || (own >= 0 && tensor.type->local_along(own));
    }
    if (!same) continue;
    result.uniform |= uint64_t{1} << d;
    if (local) result.local |= uint64_t{1} << d;
  }
  return result;
}

AxisType MeanOfShards(Operands& o, const AxisType& type) {
  if (!type.uneven) return AxisType::Partial(/*mean=*/true);
  return o.Fault(Quoted(o.name(), Phrase(" over uneven shards along dim ", type.dim,
                                         ": the mean of the per-rank means is not the mean of all elements")));
}

c10::SmallVector<Meeting, 4> AllOperands(const Operands& o) {
  c10::SmallVector<Meeting, 4> out;
  for (size_t i = 0; i < o.size(); ++i) out.push_back({&o.type(i), o.sizes(i)});
  return out;
}

AxisType OfNewValues(AxisType type) {
  type.uniform = 0;
  type.local = 0;
  type.zero = false;
  return type;
}

AxisType MapDims(const AxisType& type, c10::ArrayRef<int64_t> to) {
  AxisType result = type;
  const auto renumbered = [&to](uint64_t dims) {
    uint64_t out = 0;
    for (size_t d = 0; d < to.size() && d < 64; ++d) {
      if (to[d] >= 0 && ((dims >> d) & 1) != 0) out |= uint64_t{1} << to[d];
    }
    return out;
  };
  result.uniform = renumbered(type.uniform);
  result.local = renumbered(type.local);
  result.copies = renumbered(type.copies);
  if (type.is_shard()) result.dim = static_cast<int>(to[static_cast<size_t>(type.dim)]);
  const bool opened = type.behind >= 0 && static_cast<size_t>(type.behind) < to.size();
  result.behind = opened ? static_cast<int>(to[static_cast<size_t>(type.behind)]) : -1;
  return result;
}

}  // namespace moonshard
