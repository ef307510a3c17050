// What the checker learns from boundaries and regions.
//
// A boundary is a claim of the plan: it is compared with what is known and then believed, so that one wrong layer does
// not make every layer behind it wrong too. A region is a claim of code (a collective, a fused loss): its inputs are
// checked, its operators are not, and its outputs are believed. In a backward the same layouts describe gradients,
// where replicate and shared change their meaning: a shared tensor's gradient is partial until its region has summed
// it.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include "engine/analysis/types/nested_shards.h"
#include "engine/analysis/types/of_owner.h"
#include "engine/analysis/types/operator_checker.h"
#include "engine/analysis/types/rules/repeated_heads.h"
#include "engine/core/base/text.h"
#include "engine/layout/shards.h"

namespace moonshard {

namespace {

// A layout says nothing of a constant that is as long as a shard.
void KeepLocal(const AxisType& before, AxisType& after) {
  if (!before.is_replicate() || !after.is_replicate()) return;
  after.uniform |= before.local;
  after.local = before.local;
}

// For a shard that is none of the usual: "shard(1), where rank 0 holds 0..3, 8..11, rank 1 holds 4..7, 12..15, of 16
// indices".
std::string WithIndices(const AxisType& type) {
  return type.ToString() + (type.is_shard() && type.map != nullptr ? ", where " + type.map->ToString() : "");
}

// "'all-gather' at model.embed_tokens output 0".
std::shared_ptr<const std::string> OriginOf(const RegionInfo& region) {
  std::string origin("'");
  origin.append(region.name).append("'");
  if (!region.label.empty()) origin.append(" at ").append(region.label);
  return std::make_shared<const std::string>(std::move(origin));
}

// Whether `from` and `to` shard a dim in the same way, as torch.chunk, on an owner or in zigzag.
bool ShardAlike(const Layout& from, const Layout& to) {
  const auto plain = [](const Layout& layout) { return layout.is_plain_shard() || layout.owner >= 0; };
  return (plain(from) && plain(to)) || (from.zigzag && to.zigzag);
}

// Whether a tensor that one rank has is what `layout` says of it: terms of a sum, or a shard with this owner. The owner
// has all of it either way; see of_owner.h.
bool AgreesOfOwner(const AxisType& type, const Layout& layout, const at::Tensor& tensor, int64_t rank) {
  if (layout.kind == LayoutKind::kPartial) return type.owner == rank || tensor.numel() > 0;
  const int64_t dim = layout.dim < 0 ? layout.dim + tensor.dim() : layout.dim;
  if (!layout.is_shard() || layout.owner != type.owner || dim < 0 || dim >= tensor.dim()) return false;
  return type.owner == rank || tensor.size(dim) == 0;
}

// Whether values that differ between the ranks of tp or cp are declared terms of a sum: such are what each rank
// computes of its own rows on the data-parallel axes, and nothing tells of others what they are.
bool IsOfNoSum(const AxisType& type, const Layout& layout, const CheckedAxis& axis) {
  return layout.kind == LayoutKind::kPartial && type.is(TypeKind::kVarying) && type.owner < 0 && !IsDataAxis(axis.axis);
}

// Whether a region leaves a shard where it was: `made`, of type `after` and layout `layout`, is the same shard of a dim
// as its input.
// The local size alone does not tell which elements that is: rank 0 of 13 on two ranks has 7, as it has of 14.
bool KeepsShard(const Layout& from, const Layout& layout, const std::vector<int64_t>& sizes, const AxisType& before,
                const AxisType& after, const std::vector<int64_t>& made) {
  return (from.is_plain_shard() || from.zigzag) && from.zigzag == layout.zigzag && before.is_shard() &&
         after.is_shard() && after.parts.empty() && before.dim == after.dim && before.lead == 1 &&
         sizes[static_cast<size_t>(before.dim)] == made[static_cast<size_t>(after.dim)];
}

// Whether all elements are equal.
bool IsUniform(const AxisType& type, int64_t dims) {
  for (int64_t d = 0; d < dims; ++d) {
    if (!type.uniform_along(d)) return false;
  }
  return dims > 0;
}

// The indices of dim `dim` of `full` that the view `slice` has; nullopt: it is no slice along this dim.
std::optional<Interval> SliceAlong(int64_t dim, const at::Tensor& full, const at::Tensor& slice) {
  if (slice.dim() != full.dim() || !slice.is_alias_of(full) || slice.strides() != full.strides()) return std::nullopt;
  for (int64_t d = 0; d < full.dim(); ++d) {
    if (d != dim && slice.size(d) != full.size(d)) return std::nullopt;
  }
  const int64_t offset = slice.storage_offset() - full.storage_offset();
  const int64_t stride = full.stride(dim);
  if (stride <= 0 || offset % stride != 0) return std::nullopt;
  return Interval{offset / stride, slice.size(dim)};
}

// The indices of dim `dim` of `full` that the views `parts` have, in order, adjacent ones joined; nullopt: one of them
// is no slice.
std::optional<std::vector<Interval>> SlicesAlong(int64_t dim, const at::Tensor& full, at::TensorList parts) {
  std::vector<Interval> out;
  for (const at::Tensor& part : parts) {
    const std::optional<Interval> slice = SliceAlong(dim, full, part);
    if (!slice) return std::nullopt;
    if (slice->length == 0) continue;
    if (!out.empty() && out.back().begin + out.back().length == slice->begin) {
      out.back().length += slice->length;
    } else {
      out.push_back(*slice);
    }
  }
  return out;
}

// "elements 0 to 3 and 12 to 15 of dim 1".
std::string SlicesText(const std::vector<Interval>& slices, int64_t dim) {
  std::vector<std::string> out;
  for (const Interval& slice : slices) {
    out.push_back(std::to_string(slice.begin) + " to " + std::to_string(slice.begin + slice.length - 1));
  }
  return (out.empty() ? "no elements" : "elements " + Join(out, " and ")) + " of dim " + std::to_string(dim);
}

}  // namespace

// What is known (`type`) against what is declared (`layout`). A claim may be weaker than the knowledge, never other:
//
//   declared      agrees with
//   replicate     replicate; in a forward with gradients not one used by sharded compute, whose gradient is partial
//   shared        replicate; in a forward with gradients not one that is used alike everywhere, whose gradient would be
//                 summed although every rank has all of it
//   partial       terms of a sum, not of a mean; values of each rank's own, which are terms by what they are; zeros;
//                 gradients of rows of a rank's own experts, and not these rows: ranks have other ones
//   shard(d)      that shard; a replicate that is equal along d (zeros, an expanded dim): any shard of it is the same;
//                 with an owner also values that differ between ranks
//
// What one rank has (AxisType::owner) agrees by its sizes on the other ranks (AgreesOfOwner).
// The parts of a packed dim are compared in a forward alone: a gradient is added up from slices and has lost them.
bool OperatorChecker::Agrees(const AxisType& type, const Layout& layout, const at::Tensor& tensor,
                             const CheckedAxis& axis, int64_t full_size, bool backward,
                             const IndexMapPtr& nested) const {
  if (!type.is_known() || type.outside) return true;
  if (type.owner >= 0) return AgreesOfOwner(type, layout, tensor, axis.rank);
  const bool needs_gradient = !backward && !tensor.is_inference() && tensor.requires_grad();
  switch (layout.kind) {
    case LayoutKind::kReplicate: return type.is_replicate() && (!needs_gradient || (!type.shared && !type.is_mixed()));
    case LayoutKind::kShared:
      if (type.is_whole() && !backward) return true;
      if (layout.is_shared_last()) {
        const int64_t last = tensor.dim() > 0 && layout.last < tensor.size(-1) ? layout.last : 0;
        if (backward) return type.is_partial() && !type.mean && type.last == last;
        return type.is_replicate() && (!needs_gradient || (!type.full && type.last == last));
      }
      return type.is_replicate() && (!needs_gradient || (!type.full && !type.is_mixed()));
    // What each rank has of its own are terms too.
    case LayoutKind::kPartial:
      return (type.is_partial() && !type.mean && !type.is_mixed()) || type.is(TypeKind::kVarying) ||
             (backward && type.is(TypeKind::kRouted)) || (type.is_replicate() && type.zero);
    case LayoutKind::kShard: break;
  }
  if (layout.owner >= 0 && type.is(TypeKind::kVarying)) return true;
  const int64_t dim = layout.dim < 0 ? layout.dim + tensor.dim() : layout.dim;
  // The gradient of a shard that every rank holds whole is terms of a sum, as of shared.
  const auto whole = [&] {
    return TypeOfLayout(layout, tensor.sizes(), tensor.size(dim), axis.ranks, axis.rank).is_whole();
  };
  if (type.is_partial() && backward) return !type.mean && !type.is_mixed() && whole();
  if (type.is_replicate()) {
    return type.uniform_along(dim) || (!backward && (!needs_gradient || !type.full) && whole());
  }
  if (!type.is_shard() || type.dim != dim || type.lead != 1) return false;
  if (!backward && type.parts.empty() != layout.parts.empty()) return false;
  if (type.map == nullptr) return true;
  if (nested != nullptr) return *nested == *type.map;
  const int64_t size = full_size >= 0 ? full_size : type.map->size();
  const AxisType declared = TypeOfLayout(layout, tensor.sizes(), size, axis.ranks, axis.rank);
  // Of another length than the zigzag shard of this dim.
  if (declared.map == nullptr) return !layout.zigzag || backward;
  return *declared.map == *type.map;
}

bool OperatorChecker::IsFullConstant(const AxisType& type, const Layout& layout, const at::Tensor& tensor, size_t index,
                                     bool moves) const {
  if (!made_alone_ || static_cast<int>(index) != made_axis_ || path_.Here().backward) return false;
  if (!layout.is_shard() || layout.owner >= 0 || !type.is_replicate() || type.outside || type.zero) return false;
  const int64_t dim = layout.dim < 0 ? layout.dim + tensor.dim() : layout.dim;
  if (dim < 0 || dim >= tensor.dim() || !type.uniform_along(dim) || type.local_along(dim)) return false;
  const CheckedAxis& axis = axes_[index];
  return (moves || tensor.size(dim) > 1) &&
         !TypeOfLayout(layout, tensor.sizes(), tensor.size(dim), axis.ranks, axis.rank).is_whole();
}

// Of tokens in zigzag that another axis has sharded again, equal parts of each rank's: with 8 tokens on cp=2 and tp=2,
// tp rank 1 holds the last half of 0, 1, 6, 7 and of 2, 3, 4, 5, so that its ranks of cp hold the tokens 6, 7 and 4, 5,
// which is neither of the two layouts of four tokens. On two factors of cp the inner one shards them between these two.
// The innermost axis alone has a map of the tokens that the next one has; the others have lost a part of theirs to it.
IndexMapPtr OperatorChecker::NestedZigzag(const TensorType& type, size_t index) const {
  const AxisType& here = type[index];
  if (!here.is_shard()) return nullptr;
  std::vector<size_t> behind;
  for (size_t i = 0; i < type.size(); ++i) {
    const AxisType& other = type[i];
    if (i == index || IsDataAxis(axes_[i].axis) || !other.is_shard() || other.dim != here.dim) continue;
    if (other.map == nullptr || !other.map->even()) return nullptr;
    behind.push_back(i);
  }
  if (behind.empty()) return nullptr;
  const IndexMap& innermost = *type[behind.back()].map;
  int64_t size = innermost.size() * axes_[index].ranks;
  for (size_t i = 0; i + 1 < behind.size(); ++i) size *= axes_[behind[i]].ranks;
  const auto shards_of = [](const Layout& layout, int64_t of, int64_t ranks) {
    const Result<DimShards> shards = DimShards::Make(layout, of, ranks);
    return shards.ok() ? IndexMap::Of(shards.value()) : nullptr;
  };
  IndexMapPtr map = shards_of(Layout::Zigzag(0), size, axes_[index].ranks);
  for (size_t i = 0; i < behind.size() && map != nullptr; ++i) {
    const CheckedAxis& axis = axes_[behind[i]];
    const IndexMapPtr parts =
        i + 1 == behind.size() ? type[behind[i]].map : shards_of(Layout::Shard(0), map->length(0), axis.ranks);
    if (parts == nullptr) return nullptr;
    map = map->Kept(std::vector<std::vector<Interval>>(static_cast<size_t>(map->ranks()), parts->of(axis.rank)));
  }
  return map;
}

// Which elements a rank has of such a dim follows from the lengths on the other ranks.
bool OperatorChecker::IsUnevenNested(const TensorType& type, size_t index, const Layout& layout, int64_t dims) const {
  const AxisType& here = type[index];
  const int64_t dim = layout.dim < 0 ? layout.dim + dims : layout.dim;
  if (!layout.is_shard() || !here.is_shard() || here.dim != dim || here.lead != 1) return false;
  bool uneven = here.map == nullptr || !here.map->even();
  bool nested = false;
  for (size_t i = 0; i < type.size(); ++i) {
    if (i == index || IsDataAxis(axes_[i].axis) || !type[i].is_shard() || type[i].dim != here.dim) continue;
    nested = true;
    uneven = uneven || type[i].map == nullptr || !type[i].map->even();
  }
  return nested && uneven;
}

// Where claim and knowledge agree the knowledge stays: it is richer (the heads that a view made, the parts of a fused
// dim, the operator it comes from), and later views are judged by it. It is replaced where it is wrong or unknown, and
// where it is a replicate of which no use is known, so that the declared `full` or `shared` holds for the uses that
// follow.
void OperatorChecker::Anchor(const at::Tensor& tensor, MeshAxis axis, const Layout& layout, int64_t full_size,
                             const std::string& what, bool idle) {
  if (!tensor.defined()) return;
  for (size_t index : IndicesOf(axis)) {
    const Layout along = LayoutAlong(layout, axes_[index].factor);
    AnchorAlong(tensor, index, along, along.dim == layout.dim ? full_size : -1, what, idle, layout.ToText());
  }
}

void OperatorChecker::AnchorAlong(const at::Tensor& tensor, size_t index, const Layout& layout, int64_t full_size,
                                  const std::string& what, bool idle, const std::string& declared_text) {
  TensorType type = Get(tensor);
  AxisType& here = type[index];
  const CheckedAxis& checked = axes_[index];
  const bool unknown = here.is_shard() && here.map == nullptr && !here.is_in_order() && !here.of_gradient;
  if (unknown && layout.is_shard()) {
    NoteUnproven(what + " is declared " + declared_text + ", but it is not known which elements each rank holds");
  }
  const AxisType guessed = here;
  const IndexMapPtr nested = layout.zigzag ? NestedZigzag(type, index) : nullptr;
  bool agrees = Agrees(here, layout, tensor, checked, full_size, /*backward=*/false, nested);
  while (!agrees && MoveToNextReading(here, tensor.sizes(), sizes_compared_.contains(checked.axis),
                                      /*terms=*/false)) {
    agrees = Agrees(here, layout, tensor, checked, full_size, /*backward=*/false, nested);
  }
  if (!agrees) here = guessed;
  if (IsFullConstant(here, layout, tensor, index, !idle)) {
    NoteUnproven(
        what + " is declared " + declared_text +
        ", and its elements are equal, as many as at tp=1 or in a number of which it is not known that a shard "
        "has as many");
  }
  if (IsOfNoSum(here, layout, checked)) {
    NoteUnproven(what + " is declared " + declared_text +
                 ", and it is not known that the values, which differ between ranks, are terms of a sum");
  }
  // What is known of it is more than the declared layout tells.
  if (!agrees && IsUnevenNested(type, index, layout, tensor.dim())) {
    return NoteUnproven(what + " is declared " + declared_text +
                        ", whose shards are of other lengths, and another axis shards the dim too");
  }
  if (!agrees && here.floating) {
    one_element_ = true;
    NoteUnproven(what + " is declared " + declared_text + ", and the sharded dim of shards of one element is " +
                 "ambiguous; prove the step with more than one element per rank");
  } else if (!agrees) {
    TypeFault fault{TypeFault::Kind::kBoundary,
                    path_.Here().path,
                    false,
                    checked.axis,
                    what,
                    "",
                    declared_text,
                    WithIndices(here),
                    here.since ? *here.since : ""};
    fault.idle = idle;
    if (idle && believes_knowledge_) return Add(std::move(fault), untrue_);
    Blame(std::move(fault));
  } else if (here.is_known() && here.owner < 0 && (!here.is_replicate() || here.full || here.shared)) {
    if (!here.is_shard() || here.uneven || full_size < 0) return;
    const AxisType declared = TypeOfLayout(layout, tensor.sizes(), full_size, checked.ranks, checked.rank);
    here.uneven = declared.uneven;
    if (here.map == nullptr) here.map = declared.map;
    if (here.uneven || unknown) SetType(tensor, std::move(type));
    return;
  }
  // A layout says nothing of sizes that follow values.
  const bool by_value = here.by_value;
  const AxisType known = here;
  // Nor of the tokens of the other ranks of cp, which may be more or fewer.
  const bool lengths_unknown = here.is(TypeKind::kUnproven) && checked.axis == MeshAxis::kCp && full_size < 0;
  here = TypeOfLayout(layout, tensor.sizes(), full_size, checked.ranks, checked.rank);
  if (here.is(TypeKind::kVarying)) {
    NoteUnproven(what + " is declared " + declared_text + ", and the full size of the dim is not known");
  }
  here.by_value = by_value;
  KeepLocal(known, here);
  if (lengths_unknown) here.map = nullptr;
  if (nested != nullptr) here.map = nested;
  SetType(tensor, std::move(type));
}

// A parameter is replicated or sharded when the optimizer steps; a gradient that is still partial there lets replicas
// drift apart, without an error and within a few steps. Nothing after the backward would notice, so the end of a step
// is checked like a boundary.
void OperatorChecker::CheckGradient(const std::string& path, const at::Tensor& gradient, size_t index,
                                    const AxisType& expected, const std::string& declared) {
  if (!gradient.defined()) return;
  const AxisType here = Get(gradient)[index];
  if (here.is(TypeKind::kFaulty)) return;
  if (here.is(TypeKind::kUnproven) || (here.floating && !here.SameAs(expected))) {
    return NoteUnproven("the layout of a parameter's gradient is not known");
  }
  // Whether a sum over the dim would make one number of it, of which each rank has a term.
  if (here.is_replicate() && here.local != 0 && !here.zero && !expected.is_shard()) {
    return NoteUnproven("a parameter's gradient is that of a constant as long as a shard");
  }
  const int64_t owner = OwnerOf(expected);
  if (owner >= 0 && OwnerOf(here) == owner && (here.owner >= 0 || expected.owner >= 0) &&
      (owner == axes_[index].rank || gradient.numel() == 0)) {
    return;
  }
  // Of weights of another rank, on which no operator has anything to compute.
  if (gradient.numel() == 0 && !here.SameAs(expected)) {
    return NoteUnproven("the layout of the gradient of a shard without elements");
  }
  const bool fits =
      expected.is(TypeKind::kRouted) ? here.is(expected.kind) || (here.is_replicate() && here.zero)
      : expected.is_shard()
          ? here.SameAs(expected) || (here.is_replicate() && (here.uniform_along(expected.dim) || expected.is_whole()))
          : here.is(expected.kind);
  if (fits) return;
  if (one_element_)
    return NoteUnproven(
        "the layout of a parameter's gradient is not known: the gradient is computed from shards of one element, "
        "whose sharded dim is ambiguous");
  Blame({TypeFault::Kind::kGradient, path, true, axes_[index].axis, "gradient", "", declared, here.ToString(),
         here.since ? *here.since : ""});
}

void OperatorChecker::Stopped(const std::string& path, const std::string& what) {
  if (std::ranges::count(faults_, TypeFault::Kind::kThrew, &TypeFault::kind) > 0) return;
  Blame({TypeFault::Kind::kThrew, path, false, FirstAxis(), "the step",
         "an exception ends the step: " + what.substr(0, what.find('\n')), "", "", ""});
}

void OperatorChecker::CheckLoss(const at::Tensor& loss) {
  const TensorType type = Get(loss);
  bool compared = false;
  for (size_t i = 0; i < axes_.size(); ++i) {
    const bool batches = IsDataAxis(axes_[i].axis);
    if (batches && !compared) CheckScale(type[i], i);
    compared = compared || batches;
    if (!type[i].is_known() || type[i].is_replicate() ||
        (batches && (type[i].is_partial() || type[i].is(TypeKind::kVarying)))) {
      continue;
    }
    Blame({TypeFault::Kind::kRegion, "", false, axes_[i].axis, "the loss", "", "replicate", type[i].ToString(),
           type[i].since ? *type[i].since : ""});
  }
}

void OperatorChecker::EnterRegion(const RegionInfo& region) {
  regions_.emplace_back().name = region.name;
  if (!trusted_.contains(region.name)) trusted_.emplace(region.name);
}
void OperatorChecker::LeaveRegion() {
  const std::string name = std::move(regions_.back().name);
  regions_.pop_back();
  if (!region_observer_) return;
  const ModulePath::Place place = path_.Here();
  region_observer_(place.path, place.backward, name);
}

std::vector<size_t> OperatorChecker::AxesOf(const RegionInfo& region) const {
  std::vector<size_t> out;
  for (size_t i = 0; i < axes_.size(); ++i) {
    const AxisFactor factor = axes_[i].factor;
    const bool other = region.factor != AxisFactor::kBoth && factor != AxisFactor::kBoth && factor != region.factor;
    if (region.axes.contains(axes_[i].axis) && !other) out.push_back(i);
  }
  return out;
}

Layout OperatorChecker::LayoutIn(const RegionInfo& region, const Layout& layout, size_t index) const {
  return region.factor == AxisFactor::kBoth ? LayoutAlong(layout, axes_[index].factor) : layout;
}

void OperatorChecker::RegionInput(const RegionInfo& region, const at::Tensor& tensor, const Layout& layout) {
  const std::vector<size_t> axes = AxesOf(region);
  if (axes.empty() || !tensor.defined()) return;
  const TensorType all = Get(tensor);
  if (!regions_.empty() && regions_.back().type.empty()) {
    regions_.back() = {
        all, layout, tensor.sizes().vec(), tensor.unsafeGetTensorImpl(), regions_.back().name, SourceNow(tensor)};
  }
  if (!regions_.empty()) {
    TensorType& first = regions_.back().type;
    for (size_t i = 0; i < std::min(first.size(), all.size()); ++i) {
      first[i].batch.buffers = Union(first[i].batch.buffers, all[i].batch.buffers);
    }
  }
  for (size_t index : axes) CheckRegionInput(region, tensor, LayoutIn(region, layout, index), all, index);
}

void OperatorChecker::CheckRegionInput(const RegionInfo& region, const at::Tensor& tensor, const Layout& layout,
                                       const TensorType& all, size_t index) {
  const AxisType& here = all[index];
  const CheckedAxis& axis = axes_[index];
  const IndexMapPtr nested = layout.zigzag ? NestedZigzag(all, index) : nullptr;
  if (here.local_in != nullptr) NoteUnproven(std::string(region.name) + " of indices into the shard of each rank");
  const ModulePath::Place place = path_.Here();
  const auto agrees = [&](const AxisType& type) {
    return Agrees(type, layout, tensor, axis, -1, place.backward, nested);
  };
  if (IsFullConstant(here, layout, tensor, index, /*moves=*/true)) {
    NoteUnproven(std::string(region.name) +
                 " of equal elements, in a number of which it is not known that a shard has as many");
  }
  if (IsOfNoSum(here, layout, axis)) {
    NoteUnproven(std::string(region.name) +
                 " of values that differ between ranks, and it is not known that they are terms of a sum");
  }
  AxisType reading = here;
  while (!agrees(reading)) {
    if (!MoveToNextReading(reading, tensor.sizes(), sizes_compared_.contains(axis.axis), place.backward)) break;
  }
  if (agrees(reading)) return;
  // Of a dim of one element no sum has run, so that it is not known whether it is a term.
  if (place.backward && here.is_replicate() && here.local != 0 && layout.kind == LayoutKind::kPartial) {
    return NoteUnproven(std::string(region.name) + " of the gradient of a constant that is as long as a shard");
  }
  // A loss that is linear in the output (the score of a critic) gives the last bias the same gradient for every row. If
  // the ranks take the mean of it, it is the gradient of all rows, which is a mean too (CheckScale). If they add it up,
  // it is not known whether it is one of the rank's rows, or has nothing to do with them.
  const bool constant = place.backward && IsDataAxis(axis.axis) && layout.kind == LayoutKind::kPartial &&
                        here.is_replicate() && IsUniform(here, tensor.dim());
  if (constant && reduces_mean_.value_or(false)) return;
  if (constant) {
    return NoteUnproven(std::string(region.name) +
                        " of a gradient whose elements are equal on all ranks: it may be that of each rank's rows, or "
                        "that of a term that has no rows");
  }
  if (IsUnevenNested(all, index, layout, tensor.dim())) {
    return NoteUnproven(std::string(region.name) + ": the shards of " + ToString(axis.axis) +
                        " are of other lengths, and another axis shards the dim too");
  }
  if (here.floating) {
    one_element_ = true;
    NoteUnproven(std::string(region.name) +
                 ": the sharded dim of shards of one element is ambiguous; prove the step with more than one element "
                 "per rank");
    return;
  }
  Blame({TypeFault::Kind::kRegion, place.path, place.backward, axis.axis, std::string(region.name), "", layout.ToText(),
         WithIndices(here), here.since ? *here.since : ""});
}

// Gradients are summed in buckets: copied into one flat buffer, summed there, copied back. The tensor that comes back
// is another than the one that went in, and the operators in between are of the buffer. The parameter is the only
// thing that both ends name, so the type travels under it (reduced_), with the axes that this region does not touch.
void OperatorChecker::RegionGradientInput(const RegionInfo& region, const at::Tensor& parameter,
                                          const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  RegionInput(region, gradient, Layout::Partial());
  const auto leaf = leaves_.find(parameter.unsafeGetTensorImpl());
  for (size_t index : AxesOf(region)) {
    if (leaf == leaves_.end() || !leaf->second[index].is(TypeKind::kRouted)) continue;
    const ModulePath::Place place = path_.Here();
    Blame({TypeFault::Kind::kRegion, place.path, place.backward, axes_[index].axis, std::string(region.name), "",
           "the gradient of a parameter that all ranks have", "the gradient of a weight of a rank's own experts", ""});
  }
  reduced_.insert_or_assign(parameter.unsafeGetTensorImpl(), Get(gradient));
}

void OperatorChecker::RegionGradientOutput(const RegionInfo& region, const at::Tensor& parameter, const at::Tensor& sum,
                                           const Layout& layout) {
  const std::vector<size_t> axes = AxesOf(region);
  const auto found = reduced_.find(parameter.unsafeGetTensorImpl());
  if (found == reduced_.end()) return;
  // Over one rank nothing is summed, and the gradient has another dtype or memory.
  if (axes.empty()) return SetType(sum, found->second);
  // Along the other axes a gradient has the places of its parameter.
  const auto leaf = leaves_.find(parameter.unsafeGetTensorImpl());
  for (size_t axis = 0; leaf != leaves_.end() && axis < axes_.size(); ++axis) {
    AxisType& here = found->second[axis];
    if (here.is_shard() && leaf->second[axis].is_shard() && here.dim == leaf->second[axis].dim)
      here.map = leaf->second[axis].map;
  }
  for (size_t index : axes) {
    const Layout along = LayoutIn(region, layout, index);
    found->second[index] = TypeOfLayout(along, sum.sizes(), -1, axes_[index].ranks, axes_[index].rank);
  }
  SetType(sum, found->second);
}

// A shard that is made of a tensor which has the dim in full (a scatter, a reduce-scatter, an all-to-all) has a full
// size, which is what tells whether the ranks' shards are of one length. One that is made of a shard of the same layout
// has the full size of `before`, the type of the input. Where that size does not give the shard that is here, the
// region did something else and its size is not known.
int64_t OperatorChecker::FullSize(const Move& move, const AxisType& type, const CheckedAxis& axis) {
  const Layout& layout = move.to;
  if (!layout.is_shard() || move.before.size() != move.after.size()) return -1;
  const auto dims = static_cast<int64_t>(move.after.size());
  const auto from_0 = [&](int64_t dim) { return dim < 0 ? dim + dims : dim; };
  const int64_t dim = from_0(layout.dim);
  if (dim < 0 || dim >= dims) return -1;
  const bool same_dim = move.from.is_shard() && from_0(move.from.dim) == dim;
  if (same_dim && (!ShardAlike(move.from, layout) || type.dim != dim || type.map == nullptr)) return -1;
  const int64_t size = same_dim ? type.map->size() : move.before[static_cast<size_t>(dim)];
  const Result<DimShards> shards =
      DimShards::Make(layout.has_equal_parts() ? layout.Sized(size) : layout, size, axis.ranks);
  return shards.ok() && shards.value().length(axis.rank) == move.after[static_cast<size_t>(dim)] ? size : -1;
}

// Of the two factors of an axis the outer one shards a dim first and gathers it last. In between a rank has the tokens
// of its group.
std::vector<OperatorChecker::Move> OperatorChecker::MovesOf(const RegionInfo& region, const RegionSource& input,
                                                            const Layout& layout, at::IntArrayRef made) const {
  std::vector<Move> out;
  for (size_t index : AxesOf(region)) {
    out.push_back(
        {index, LayoutIn(region, input.layout, index), LayoutIn(region, layout, index), input.sizes, made.vec()});
  }
  const auto outer = std::ranges::find_if(out, [&](const Move& move) {
    return region.factor == AxisFactor::kBoth && axes_[move.index].factor == AxisFactor::kOuter;
  });
  if (outer == out.end()) return out;
  Move& inner = *(outer + 1);
  const bool enters = !outer->from.is_shard() && outer->to.is_shard();
  std::vector<int64_t> of_group = enters ? outer->before : outer->after;
  if (outer->from.is_shard() != outer->to.is_shard() && outer->before.size() == outer->after.size()) {
    const Layout& shard = enters ? outer->to : outer->from;
    const auto dims = static_cast<int64_t>(of_group.size());
    const int64_t dim = shard.dim < 0 ? shard.dim + dims : shard.dim;
    const CheckedAxis& axis = axes_[outer->index];
    if (dim >= 0 && dim < dims) {
      int64_t& size = of_group[static_cast<size_t>(dim)];
      size = DimShards::Make(shard, size, axis.ranks).ValueOrThrow().length(axis.rank);
    }
  }
  if (enters) {
    outer->after = of_group;
    inner.before = std::move(of_group);
  } else {
    inner.after = of_group;
    outer->before = std::move(of_group);
    std::swap(*outer, inner);
  }
  return out;
}

// The batch is no dim that tp or cp shard, so types along the data-parallel axes stay.
void OperatorChecker::KeepNested(const RegionInfo& region, const Move& move, TensorType& type) {
  const CheckedAxis& along = axes_[move.index];
  const MovedAlong moved = {along.axis, along.ranks, along.rank,
                            move.from,  move.to,     along.factor == AxisFactor::kInner};
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (i == move.index || IsDataAxis(axes_[i].axis)) continue;
    ShardedBetween between;
    if (axes_[i].factor == AxisFactor::kOuter && along.axis != axes_[i].axis && type[i + 1].is_shard() &&
        type[i + 1].dim == type[i].dim) {
      between = {axes_[i + 1].ranks, axes_[i + 1].rank};
    }
    std::optional<AxisType> after =
        TypeBeside(type[i], axes_[i].axis, axes_[i].rank, moved, move.before, move.after, axes_[i].zigzag, between);
    if (!after) {
      NoteUnproven(std::string(region.name) + ": it is not known which elements each rank of " +
                   ToString(axes_[i].axis) + " holds of a dim that " + ToString(along.axis) + " shards too");
    }
    type[i] = after ? std::move(*after) : AxisType::Of(TypeKind::kUnproven);
  }
}

void OperatorChecker::RegionOutput(const RegionInfo& region, const at::Tensor& tensor, const Layout& layout,
                                   bool summed) {
  if (!tensor.defined()) return;
  const RegionSource input = regions_.empty() ? RegionSource() : regions_.back();
  TensorType type = input.type.empty() ? TensorType(axes_.size()) : input.type;
  // Without gradients replicate and shared are one, and a region between them returns what it was given: the tensor is
  // then what it was to all who use it besides, also where they use it with gradients again (a recomputed module).
  const std::vector<size_t> axes = AxesOf(region);
  if (!axes.empty() && input.tensor == tensor.unsafeGetTensorImpl() && !summed && !c10::GradMode::is_enabled() &&
      !path_.Here().backward && type[axes.front()].is_replicate() && !layout.is_shard() &&
      layout.kind != LayoutKind::kPartial) {
    return;
  }
  const bool one_axis = !input.type.empty() && std::ranges::all_of(axes, [&](size_t index) {
    return axes_[index].axis == axes_[axes.front()].axis;
  });
  for (const Move& move : MovesOf(region, input, layout, tensor.sizes())) {
    if (one_axis) KeepNested(region, move, type);
    const CheckedAxis& checked = axes_[move.index];
    AxisType& here = type[move.index];
    const AxisType before = here;
    const int64_t full_size = input.type.empty() ? -1 : FullSize(move, before, checked);
    here = TypeOfLayout(move.to, move.after, full_size, checked.ranks, checked.rank);
    if (here.is(TypeKind::kVarying)) {
      NoteUnproven(std::string(region.name) + ": the full size of a shard with an owner is not known");
    }
    here.by_value = before.by_value;
    if (move.before == move.after) KeepLocal(before, here);
    if (KeepsShard(move.from, move.to, move.before, before, here, move.after)) {
      here.map = before.map;
      here.uneven = before.uneven;
      here.of_gradient = before.of_gradient;
    }
    // A shard of one head is the whole on every rank, and the gradients of all ranks are summed: `shared`.
    if (here.is_whole() && !path_.Here().backward) here = AxisType::Shared();
    here.since = OriginOf(region);
  }
  for (size_t i = 0; i < type.size() && summed; ++i) {
    const bool along = std::ranges::count(axes, i) > 0;
    if (along || !(type[i].is_shard() || type[i].is(TypeKind::kVarying))) continue;
    const BufferSet buffers = type[i].batch.buffers;
    type[i] = AxisType::Partial();
    type[i].batch.buffers = buffers;
  }
  SetType(tensor, std::move(type));
}

void OperatorChecker::RegionMoved(const RegionInfo& /*region*/, const at::Tensor& tensor) {
  if (!regions_.empty()) SetSource(tensor, regions_.back().source);
}

// What a region claims of a slice is not believed: which elements a view has can be read from its strides and its
// offset, also on the meta device, and a rotary table at the positions of another rank has the right size.
void OperatorChecker::RegionSlice(const RegionInfo& region, const at::Tensor& full, at::TensorList parts,
                                  const at::Tensor& shard, const Layout& layout) {
  if (!full.defined() || !shard.defined()) return;
  RegionInput(region, full, Layout::Replicate());
  TensorType type = Get(full);
  const int64_t dim = layout.dim < 0 ? layout.dim + full.dim() : layout.dim;
  const std::vector<size_t> axes = AxesOf(region);
  for (size_t i = 0; i < axes_.size(); ++i) {
    const bool nested = !axes.empty() && std::ranges::count(axes, i) == 0 && type[i].is_shard() && type[i].dim == dim;
    if (!nested || IsDataAxis(axes_[i].axis)) continue;
    NoteUnproven(std::string(region.name) + ": it is not known which elements each rank of " + ToString(axes_[i].axis) +
                 " holds of a dim that is sharded twice");
    type[i] = AxisType::Of(TypeKind::kUnproven);
  }
  const std::optional<std::vector<Interval>> found = SlicesAlong(dim, full, parts);
  for (size_t index : axes) {
    const CheckedAxis& axis = axes_[index];
    AxisType& here = type[index];
    if (region.factor == AxisFactor::kBoth && axis.factor != AxisFactor::kBoth) {
      NoteUnproven(std::string(region.name) + " over both factors of " + ToString(axis.axis));
      here = AxisType::Of(TypeKind::kUnproven);
      continue;
    }
    if (!here.is_replicate()) {
      if (!here.is(TypeKind::kUnproven)) here = AxisType::Of(TypeKind::kFaulty);
      continue;
    }
    here = TypeOfLayout(layout, shard.sizes(), full.size(dim), axis.ranks, axis.rank);
    here.since = OriginOf(region);
    const DimShards shards = DimShards::Make(layout, full.size(dim), axis.ranks).ValueOrThrow();
    if (found == shards.of(axis.rank) && shard.size(dim) == shards.length(axis.rank)) continue;
    const ModulePath::Place place = path_.Here();
    Blame({TypeFault::Kind::kRegion, place.path, place.backward, axis.axis, std::string(region.name), "",
           SlicesText(shards.of(axis.rank), dim), found ? SlicesText(*found, dim) : "no slice of the full tensor", ""});
    here = AxisType::Of(TypeKind::kFaulty);
  }
  SetType(shard, std::move(type));
  SetSource(shard, SourceNow(full));
}

// As the rule of scaled_dot_product_attention (rules/attention.cc) has it: heads do not mix, so that a shard of them
// passes, if a rank has the keys of its queries; of a partial tensor there is no softmax, and the backward is linear in
// the gradient alone.
void OperatorChecker::RegionAttention(const RegionInfo& region, const std::array<at::Tensor, 3>& heads,
                                      const at::Tensor& gradient) {
  constexpr int64_t kHeads = 1;
  const std::vector<size_t> axes = AxesOf(region);
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes.empty() || std::ranges::count(axes, i) > 0 || IsDataAxis(axes_[i].axis)) continue;
    const AxisType queries = Get(heads[0])[i];
    // Which heads a gradient has follows from the result, whose gradient it is, where its map is not known.
    const auto fits = [&](const AxisType& type, const AxisType& as, bool of_gradient) {
      if (queries.is_replicate()) return type.is_replicate();
      const bool shards = queries.is_shard() && queries.dim == kHeads && queries.lead == 1 && type.is_shard() &&
                          type.dim == kHeads && type.lead == 1;
      if (of_gradient && as.map == nullptr) return shards;
      return shards && queries.map != nullptr && as.map != nullptr && Corresponds(*queries.map, *as.map);
    };
    bool known = queries.is_known();
    bool together = true;
    for (const at::Tensor& tensor : heads) {
      const AxisType type = Get(tensor)[i];
      known = known && type.is_known();
      // The one head of keys or values that all ranks have is that of each query.
      const bool one =
          queries.is_shard() && queries.dim == kHeads && type.is_replicate() && type.shared && tensor.size(kHeads) == 1;
      together = together && (one || fits(type, RepeatedFor(queries, type), false));
    }
    if (gradient.defined()) {
      const AxisType type = Get(gradient)[i];
      known = known && type.is_known();
      together = together && (fits(type, type, true) || (queries.is_replicate() && type.is_partial()));
    }
    if (!known || together) continue;
    NoteUnproven(std::string(region.name) + ": on " + ToString(axes_[i].axis) +
                 " the heads of queries, keys, values and the gradient are not known to be the same: " +
                 WithIndices(queries) + "; " + WithIndices(Get(heads[1])[i]) + "; " + WithIndices(Get(heads[2])[i]) +
                 (gradient.defined() ? "; " + WithIndices(Get(gradient)[i]) : ""));
  }
}

void OperatorChecker::RegionGradientOf(const RegionInfo& region, const at::Tensor& gradient, const at::Tensor& of,
                                       const at::Tensor& result) {
  const std::vector<size_t> axes = AxesOf(region);
  TensorType type = Get(result);
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes.empty() || std::ranges::count(axes, i) > 0 || IsDataAxis(axes_[i].axis)) continue;
    if (Get(of)[i].is_shard()) continue;
    // Of the one head that all ranks have each rank's queries give a term.
    const AxisType given = Get(gradient)[i];
    type[i] = given.is_shard() ? AxisType::Partial() : given;
  }
  SetType(result, std::move(type));
}

// A region that sends rows may not be fed with rows that were sent already, nor with terms of a sum. Along an axis that
// shards the features a row keeps them. Along the other data-parallel axes each rank sends rows of its own, too, in an
// order that is that of the experts and no longer that of the batch.
void OperatorChecker::RowsSent(const RegionInfo& region, const at::Tensor& from, const at::Tensor& rows) {
  if (!from.defined() || !rows.defined()) return;
  TensorType type = Get(from);
  const std::vector<size_t> axes = AxesOf(region);
  for (size_t i = 0; i < axes_.size(); ++i) {
    AxisType& here = type[i];
    if (here.is(TypeKind::kFaulty)) continue;
    if (std::ranges::count(axes, i) > 0 || IsDataAxis(axes_[i].axis)) {
      if (here.is(TypeKind::kRouted) || here.is_partial() || here.is(TypeKind::kOwnRows)) {
        const ModulePath::Place place = path_.Here();
        Blame({TypeFault::Kind::kRegion, place.path, place.backward, axes_[i].axis, std::string(region.name), "",
               "rows of the batch", here.ToString(), here.since ? *here.since : ""});
      }
      here = AxisType::Of(TypeKind::kRouted);
      here.since = OriginOf(region);
    } else {
      here = OfRows(region, here, from, rows, axes_[i]);
    }
    here.by_value = true;
  }
  SetType(rows, std::move(type));
}

void OperatorChecker::RowsReturned(const RegionInfo& region, const at::Tensor& rows, const at::Tensor& tokens,
                                   const at::Tensor& result) {
  if (!result.defined()) return;
  if (!rows.defined()) NoteUnproven(std::string(region.name) + " of a rank whose experts have no result");
  TensorType type = rows.defined() ? Get(rows) : TensorType(axes_.size());
  const TensorType of_tokens = tokens.defined() ? Get(tokens) : TensorType(axes_.size());
  const std::vector<size_t> axes = AxesOf(region);
  for (size_t i = 0; i < axes_.size(); ++i) {
    AxisType& here = type[i];
    if (here.is(TypeKind::kFaulty)) continue;
    const bool along = std::ranges::count(axes, i) > 0 || IsDataAxis(axes_[i].axis);
    if (along && here.is_known() && !here.is(TypeKind::kRouted) && !(here.is_replicate() && here.zero)) {
      const ModulePath::Place place = path_.Here();
      Blame({TypeFault::Kind::kRegion, place.path, place.backward, axes_[i].axis, std::string(region.name), "",
             AxisType::Of(TypeKind::kRouted).ToString(), here.ToString(), here.since ? *here.since : ""});
    }
    if (along) {
      here = tokens.defined() ? of_tokens[i] : AxisType::Shard(0, result.size(0));
      here.of_gradient = !tokens.defined();
      here.behind = -1;
      here.uniform = 0;
      here.local = 0;
      here.zero = false;
      here.copies = 0;
      here.since = OriginOf(region);
    } else {
      here = OfRows(region, here, rows, result, axes_[i]);
    }
    here.by_value = false;
  }
  SetType(result, std::move(type));
}

// The type along an axis that takes no rows of the batch: of `made`, whose last dim is that of `from`, of type `here`.
AxisType OperatorChecker::OfRows(const RegionInfo& region, AxisType here, const at::Tensor& from,
                                 const at::Tensor& made, const CheckedAxis& axis) {
  here.uniform = 0;
  here.local = 0;
  here.zero = false;
  here.copies = 0;
  here.behind = -1;
  if (!here.is_known() || here.is_partial()) return here;
  if (here.is_replicate()) {
    here.map = nullptr;
    return here;
  }
  if (here.is_shard() && here.dim == from.dim() - 1) {
    here.dim = static_cast<int>(made.dim()) - 1;
    return here;
  }
  NoteUnproven(std::string(region.name) + ": the rows are not known to be the same on all ranks of " +
               ToString(axis.axis));
  return AxisType::Of(TypeKind::kUnproven);
}

// A sum over the ranks makes terms whole. Of a shard it stays a shard: several ranks hold that shard (key and value
// heads) and the sum is over those ranks alone. Of what is replicated already it would be the value times the number
// of ranks, a fault, as would be the sum of a mean; zeros are the same whichever way they are read. Undefined terms are
// those of a rank that has none.
void OperatorChecker::RegionSum(const RegionInfo& region, const at::Tensor& terms, const at::Tensor& sum) {
  const std::vector<size_t> axes = AxesOf(region);
  if (axes.empty()) return;
  TensorType type = terms.defined() ? Get(terms) : TensorType(axes_.size(), AxisType::Full());
  for (size_t index : axes) {
    AxisType& here = type[index];
    const bool own = here.is(TypeKind::kVarying) || here.is(TypeKind::kRouted);
    if ((here.is_partial() && !here.mean) || own) {
      here = AxisType::Full();
    } else if (here.is_partial() || (here.is_replicate() && !here.zero && terms.defined())) {
      const ModulePath::Place place = path_.Here();
      Blame({TypeFault::Kind::kRegion, place.path, place.backward, axes_[index].axis, std::string(region.name), "",
             "partial", here.ToString(), ""});
    }
  }
  SetType(sum, std::move(type));
}

// What is indexed with the rows has their Choice, so that all of it is grouped alike.
void OperatorChecker::Groups(const at::Tensor& rows) {
  TensorType type = Get(rows);
  for (AxisType& axis : type) {
    if (axis.chosen == nullptr || !axis.is_shard() || axis.dim != 0) continue;
    Choice grouped = *axis.chosen;
    grouped.grouped = true;
    axis.chosen = std::make_shared<const Choice>(std::move(grouped));
  }
  SetType(rows, std::move(type));
}

void OperatorChecker::OwnRows(const at::Tensor& ids, const at::Tensor& table) {
  const TensorType rows = Get(table);
  TensorType type = Get(ids);
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    if (!rows[axis].is_shard() || rows[axis].dim != 0) continue;
    type[axis] = AxisType::Of(TypeKind::kOwnRows);
    type[axis].map = rows[axis].map;
  }
  SetType(ids, std::move(type));
}

void OperatorChecker::OwnRows(const at::Tensor& ids, MeshAxis axis) {
  const int index = AxisIndex(axis);
  if (index < 0) return;
  TensorType type = Get(ids);
  type[static_cast<size_t>(index)] = AxisType::Of(TypeKind::kOwnRows);
  SetType(ids, std::move(type));
}

// Ranks that run different branches run different collectives, and wait for each other. Data-parallel ranks have other
// rows, and run each their own step.
void OperatorChecker::Predicate(const at::Tensor& predicate) {
  const TensorType* known = TypeOf(predicate);
  if (!leaves_.contains(predicate.unsafeGetTensorImpl()) && (known == nullptr || known->size() != axes_.size()))
    Assume(predicate, known);
  const TensorType type = Get(predicate);
  for (size_t i = 0; i < axes_.size(); ++i) {
    const bool batches = IsDataAxis(axes_[i].axis);
    if (batches || type[i].is_replicate() || type[i].is(TypeKind::kFaulty)) continue;
    if (!type[i].is_known()) {
      NoteUnproven("cond: the layout of its predicate is not known");
      continue;
    }
    const ModulePath::Place place = path_.Here();
    Blame({TypeFault::Kind::kOperator, place.path, place.backward, axes_[i].axis, "cond(" + type[i].ToString() + ")",
           "its predicate is not the same on all ranks, so the ranks would run different branches", "", "",
           type[i].since ? *type[i].since : "", type[i].is_partial() ? SuggestedFix::kMakeSum : SuggestedFix::kGather});
  }
}

}  // namespace moonshard
