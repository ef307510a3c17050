#include "engine/analysis/types/written_view.h"

#include <algorithm>

#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

AxisType Unknown() { return AxisType::Of(TypeKind::kUnproven); }

// A number in every element, or memory that nothing was put into yet.
bool IsConstant(const AxisType& type, int64_t dims) {
  if (!type.is_replicate() || type.is_mixed()) return false;
  for (int64_t d = 0; d < dims; ++d) {
    if (!type.uniform_along(d)) return false;
  }
  return true;
}

bool SameElements(const AxisType& a, const AxisType& b) {
  if (a.map != nullptr && b.map != nullptr) return *a.map == *b.map;
  if (a.chosen != nullptr || b.chosen != nullptr) return a.chosen == b.chosen || (a.is_in_order() && b.is_in_order());
  return a.of_gradient && b.of_gradient;
}

AxisType WithShard(const AxisType& before, int64_t dims, const AxisType& written, const BoxInBase* box) {
  const int64_t dim = box == nullptr ? -1 : box->dims[static_cast<size_t>(written.dim)];
  if (dim < 0 || !box->whole[static_cast<size_t>(dim)]) return Unknown();
  AxisType put = MapDims(written, box->dims);
  put.copies = 0;
  if (IsConstant(before, dims)) {
    const bool fits = before.map == nullptr || before.dim != dim || put.map == nullptr || *before.map == *put.map;
    return fits ? put : Unknown();
  }
  return before.is_shard() && before.SameAs(put) && SameElements(before, put) ? before : Unknown();
}

// Sets the dims along which a tensor still has equal elements after a write: those that the view has in full, and that
// are equal in what was written. Where a tensor that is as long as a shard has other elements in places of it, the type
// is unknown: a reduction of it is neither a sum of ranks nor what each of them has.
void KeepEqual(const AxisType& before, int64_t dims, const AxisType& written, const BoxInBase* box, AxisType& after) {
  after.unwritten = before.unwritten;  // the rest of it
  if (!before.is_replicate()) return;
  for (size_t j = 0; box != nullptr && j < box->dims.size(); ++j) {
    const int64_t d = box->dims[j];
    if (d < 0 || d >= std::min<int64_t>(dims, 64) || !box->whole[static_cast<size_t>(d)]) continue;
    if (before.uniform_along(d) && written.uniform_along(static_cast<int64_t>(j))) after.uniform |= uint64_t{1} << d;
  }
  after.local = before.local & after.uniform;
  if (after.local != before.local) after = Unknown();
}

AxisType WithReplicate(const AxisType& before, int64_t dims, const AxisType& written, const BoxInBase* box) {
  if (written.zero && before.is_known()) {
    AxisType after = before;
    if (!before.zero) after.uniform = 0;
    if (!before.zero) KeepEqual(before, dims, written, box, after);
    return after;
  }
  // A number in places of what differs between ranks.
  if (before.is(TypeKind::kVarying) && before.owner < 0 && box != nullptr &&
      IsConstant(written, static_cast<int64_t>(box->dims.size()))) {
    AxisType after = before;
    after.batch = OfBatch::Of(BatchScale::kOther);
    after.batch.buffers = Union(before.batch.buffers, written.batch.buffers);
    return after;
  }
  if (before.is_shard()) {
    if (box == nullptr) return Unknown();
    const auto at = std::ranges::find(box->dims, static_cast<int64_t>(before.dim));
    const bool same = at != box->dims.end() && written.uniform_along(at - box->dims.begin());
    return same ? before : Unknown();
  }
  if (!before.is_replicate() || before.is_mixed() || written.is_mixed()) return Unknown();
  if ((before.full && written.shared) || (before.shared && written.full)) return Unknown();
  if (before.outside != written.outside && !IsConstant(before, dims)) return Unknown();
  AxisType after = AxisType::Replicate();
  after.full = before.full || written.full;
  after.shared = before.shared || written.shared;
  after.outside = written.outside;
  KeepEqual(before, dims, written, box, after);
  return after;
}

}  // namespace

// A dim of a view keeps the stride of the dim that it was, so strides tell them apart; dims of size 1 have any stride
// and are taken to be those at the same place, where there are as many.
std::optional<BoxInBase> FindBox(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef base_sizes,
                                 at::IntArrayRef base_strides) {
  BoxInBase box;
  box.dims.assign(sizes.size(), -1);
  box.whole.assign(base_sizes.size(), false);
  c10::SmallVector<bool, 6> used(base_sizes.size(), false);
  for (size_t j = 0; j < sizes.size(); ++j) {
    if (sizes[j] == 1) continue;
    size_t d = 0;
    while (d < base_sizes.size() && (used[d] || base_sizes[d] == 1 || base_strides[d] != strides[j])) ++d;
    if (d == base_sizes.size() || sizes[j] > base_sizes[d]) return std::nullopt;
    used[d] = true;
    box.dims[j] = static_cast<int64_t>(d);
    box.whole[d] = sizes[j] == base_sizes[d];
  }
  for (size_t j = 0; j < sizes.size() && sizes.size() == base_sizes.size(); ++j) {
    if (sizes[j] != 1 || used[j]) continue;
    used[j] = true;
    box.dims[j] = static_cast<int64_t>(j);
    box.whole[j] = base_sizes[j] == 1;
  }
  for (size_t d = 0; d < base_sizes.size(); ++d) box.whole[d] = box.whole[d] || base_sizes[d] == 1;
  return box;
}

AxisType AfterWrite(const AxisType& before, int64_t dims, const AxisType& written, const BoxInBase* box) {
  if (before.is(TypeKind::kFaulty) || written.is(TypeKind::kFaulty)) return AxisType::Of(TypeKind::kFaulty);
  if (before.floating || written.floating) return Unknown();
  switch (written.kind) {
    case TypeKind::kShard: return WithShard(before, dims, written, box);
    case TypeKind::kReplicate: return WithReplicate(before, dims, written, box);
    case TypeKind::kPartial:
      if (written.is_mixed()) return Unknown();
      if (before.is_replicate() && before.zero) return written;
      return before.is_partial() && before.mean == written.mean && !before.is_mixed() ? before : Unknown();
    case TypeKind::kRouted: return IsConstant(before, dims) || before.is(TypeKind::kRouted) ? written : Unknown();
    case TypeKind::kVarying:
      if (written.owner >= 0 || before.owner >= 0) return Unknown();
      return IsConstant(before, dims) || before.is(TypeKind::kVarying) ? written : Unknown();
    default: return Unknown();
  }
}

AxisType TypeInBase(const AxisType& base, const BoxInBase* box) {
  AxisType type = base;
  type.uniform = 0;
  type.local = 0;
  type.copies = 0;
  type.zeros_behind = 0;
  if (base.is_mixed() || base.floating || base.local_in != nullptr) return Unknown();
  if (!base.is_shard()) {
    if (!type.zero) type.map = nullptr;
    return type;
  }
  const auto dim = static_cast<size_t>(base.dim);
  if (box == nullptr || !box->whole[dim]) return Unknown();
  c10::SmallVector<int64_t, 6> to(box->whole.size(), -1);
  for (size_t j = 0; j < box->dims.size(); ++j) {
    if (box->dims[j] >= 0) to[static_cast<size_t>(box->dims[j])] = static_cast<int64_t>(j);
  }
  return to[dim] < 0 ? Unknown() : MapDims(type, to);
}

}  // namespace moonshard
