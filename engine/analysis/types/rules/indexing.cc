// Operators that take elements by tensors of indices: lookups, and their backwards, which add at indices.
//
// Indices are global. On a local shard of the dim they are wrong on every rank but the first, unless they were shifted
// and masked. Only the code that does so knows it, and marks the ids as own rows (NoteOwnRows). A lookup by own rows is
// varying until the rows of other ranks are masked to zero; every row is then on exactly one rank and zero elsewhere,
// which is partial. Shards of other dims of the table pass through.
//
// Adding at indices is the transpose of a lookup. Slices that are added to zeros are partial if each rank adds
// different slices; added to a replicated tensor they would count on one rank only, so that is refused.
#include <algorithm>

#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

constexpr std::string_view kUnknownOrigin =
    "it is not known whether the indices into a shard count from the start of the shard or of the full dim";

// (table, ids, ...): rows of the table.
AxisTypes Embedding(Operands& o) {
  const AxisType& table = o.type(0);
  const AxisType& ids = o.type(1);
  const int64_t last = o.made_dims() - 1;
  if (ids.is_partial()) return {o.Fault("the ids are partial; reduce the ids first", SuggestedFix::kMakeSum)};
  if (table.is_partial())
    return {ids.is_replicate()
                ? AxisTypes{table}
                : AxisTypes{
                      o.Fault("a partial table is looked up with ids that differ between ranks; reduce the table first",
                              SuggestedFix::kMakeSum)}};
  if (table.is_shard() && table.dim == 0) {
    if (ids.is(TypeKind::kOwnRows)) return {AxisType::Of(TypeKind::kVarying)};
    return {
        o.Fault("global ids are used on a local shard of the table; shift the ids and mask the rows of other ranks")};
  }
  if (table.is_shard()) {
    if (!ids.is_replicate()) return {o.Fault("the columns of the table are sharded, so the ids must be replicated")};
    AxisType result = table;
    result.dim = static_cast<int>(last);
    return {result};
  }
  if (table.is(TypeKind::kVarying) || ids.is(TypeKind::kVarying)) return {AxisType::Of(TypeKind::kVarying)};
  return {OfNewValues(ids)};
}

// (gradient, ids, rows, padding, scale by frequency): the gradient of the table.
AxisTypes EmbeddingBackward(Operands& o) {
  const AxisType& gradient = o.type(0);
  const AxisType& ids = o.type(1);
  if (ids.is_partial()) return {o.Fault("the ids are partial; reduce the ids first", SuggestedFix::kMakeSum)};
  if (o.Flag(4) && ids.is_shard())
    return {
        o.Fault("gradients are divided by how often each id occurs, but each rank counts the ids of its shard only")};
  if (ids.is(TypeKind::kOwnRows)) return {AxisType::Shard(0, o.made()[0])};
  if (gradient.is(TypeKind::kVarying) || ids.is(TypeKind::kVarying)) return {AxisType::Partial()};
  if (gradient.is_partial())
    return {ids.is_replicate()
                ? AxisTypes{gradient}
                : AxisTypes{o.Fault(
                      "a partial gradient is combined with ids that differ between ranks; reduce the gradient first",
                      SuggestedFix::kMakeSum)}};
  if (gradient.is_shard() && gradient.dim == o.dims(0) - 1) {
    AxisType result = gradient;
    result.dim = 1;
    return {result};
  }
  if (gradient.is_shard() || ids.is_shard()) {
    if (!ids.is_shard() || (gradient.is_shard() && !gradient.SameAs(ids))) {
      return {o.Fault("the ids and the gradient are not sharded in the same way")};
    }
    AxisType rows = ids;
    if (gradient.is_shard() && !MeetMaps(o, rows, gradient))
      return {AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty)};
    return {AxisType::Partial()};
  }
  return {AxisType::Replicate()};
}

// (x, dim, indices): elements of dim by a list of indices.
AxisTypes IndexSelect(Operands& o) {
  const AxisType& x = o.type(0);
  const AxisType& places = o.type(1);
  const int64_t dim = o.Dim(1, o.dims(0));
  if (places.is(TypeKind::kVarying) || places.is(TypeKind::kOwnRows) || x.is(TypeKind::kVarying)) {
    return {AxisType::Of(TypeKind::kVarying)};
  }
  if (places.is_partial())
    return {o.Fault("the indices are partial; reduce the indices first", SuggestedFix::kMakeSum)};
  if (x.is_shard() && x.dim == dim) {
    if (places.is_shard()) {
      if (!places.by_value && !o.backward()) return {o.Unproven(std::string(kUnknownOrigin))};
      AxisType result = x;  // local indices
      result.length = o.made()[static_cast<size_t>(dim)];
      result.lead = 1;
      result.parts.clear();
      result.map = places.map;
      return {result};
    }
    return {o.Fault(Phrase("global indices are used on a local shard of dim ", dim))};
  }
  if (places.is_shard()) {
    if (!x.is_replicate()) return {o.Fault("the indices are sharded, so the tensor must be replicated")};
    AxisType result = places;
    result.dim = static_cast<int>(dim);
    return {result};
  }
  AxisType result = x;
  result.uniform = 0;
  return {result};
}

// (x, dim, indices, source): x with source's slices added at the indices. Partial if each rank adds its own slices to
// zeros.
AxisTypes IndexAdd(Operands& o) {
  const AxisType& x = o.type(0);
  const AxisType& places = o.type(1);
  const AxisType& source = o.type(2);
  const int64_t dim = o.Dim(1, o.dims(0));
  const bool zeros = x.is_replicate() && x.zero;
  if (places.is_partial())
    return {o.Fault("the indices are partial; reduce the indices first", SuggestedFix::kMakeSum)};
  if (source.is(TypeKind::kVarying) || places.is(TypeKind::kVarying)) {
    if (x.is_partial() || zeros) return {AxisType::Partial()};
    return {o.Fault(
        "slices that differ between ranks are added to a tensor that is neither partial nor zero; each rank would add "
        "only its own slices")};
  }
  if (source.is_partial()) {
    if (!places.is_replicate())
      return {o.Fault("partial slices are added at indices that differ between ranks; reduce the slices first",
                      SuggestedFix::kMakeSum)};
    if (x.is_partial() || zeros) return {source};
    return {o.Fault("partial slices are added to a tensor that is neither partial nor zero; reduce the slices first",
                    SuggestedFix::kMakeSum)};
  }
  if (places.is_shard() && source.is_replicate()) {
    if (!source.uniform_along(dim))
      return {o.Fault("the indices are sharded, but the slices are not; each rank needs its shard of the slices",
                      SuggestedFix::kTakeShard)};
    if (!places.by_value && !o.backward()) return {o.Unproven(std::string(kUnknownOrigin))};
    if (x.is_shard() && x.dim == dim) return {x};
    if (!zeros)
      return {
          o.Fault("slices at sharded indices are added to a tensor that is neither sharded along the same dim nor "
                  "zero")};
    AxisType result = AxisType::Shard(dim, o.made()[static_cast<size_t>(dim)]);
    result.map = x.dim == dim ? x.map : nullptr;
    return {result};
  }
  if (x.is_partial())
    return {
        o.Fault(source.is_replicate()
                    ? "replicated slices are added to a partial tensor and would be counted once per rank; reduce the "
                      "partial tensor first"
                    : "slices that are not partial are added to a partial tensor; reduce the partial tensor first",
                SuggestedFix::kMakeSum)};
  if (places.is_shard() && source.is_shard() && source.dim == dim) {
    AxisType rows = source;
    AxisType of_places = places;
    of_places.dim = rows.dim;
    if (!MeetMaps(o, rows, of_places)) {
      return {AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty)};
    }
    if (!places.by_value && !o.backward()) return {o.Unproven(std::string(kUnknownOrigin))};
    if (x.is_shard() && x.dim == dim) return {x};
    if (zeros) {
      AxisType result = source;
      result.length = o.made()[static_cast<size_t>(dim)];
      result.map = x.dim == dim ? x.map : nullptr;  // rows of what the zeros were made as long as
      return {result};
    }
    return {o.Fault("sharded slices are added to a tensor that is not sharded along the same dim")};
  }
  if (source.is_shard() && source.dim == dim)
    return {
        o.Fault("the slices are sharded, but the indices count all slices; each rank needs its shard of the indices")};
  if (source.is_shard() && places.is_shard())
    return {o.Fault(Phrase("the indices are sharded, but the slices are sharded along dim ", source.dim,
                           "; each rank would add some columns of some slices only"))};
  if (source.is_shard()) {
    if (x.is_shard() && x.SameAs(source)) {
      AxisType result = source;
      if (MeetMaps(o, result, x)) return {result};
      return {AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty)};
    }
    if (!x.is_shard() && x.uniform_along(source.dim)) return {source};
    return {o.Fault("shards are added to a tensor that is not sharded along the same dim")};
  }
  if (x.is_shard()) return {o.Fault("replicated slices are added to shards; each rank needs its shard of the slices")};
  return {AxisType::Replicate()};
}

// The dims of x that the tensors of an index list, operands `first` to `last`, index, in ascending order. A mask of
// several dims stands for as many dims, which its place does not show: the callers compare numbers of dims.
c10::SmallVector<int64_t, 4> IndexedDims(const Operands& o, size_t first, size_t last) {
  c10::SmallVector<int64_t, 4> dims;
  for (size_t i = first; i < last; ++i) dims.push_back(o.place(i));
  return dims;
}

// The dim of the result at which the dims of the indices are placed: where the indexed dims were if they are adjacent,
// else before all other dims.
int64_t PlaceOfIndices(c10::ArrayRef<int64_t> indexed) {
  return indexed.back() - indexed.front() + 1 == static_cast<int64_t>(indexed.size()) ? indexed.front() : 0;
}

// Whether one of the operands `first` to `last` is a mask in shards of which `is` holds.
template <class Is>
bool AnyShardedMask(const Operands& o, size_t first, size_t last, const Is& is) {
  for (size_t i = first; i < last; ++i) {
    if (o.is_mask(i) && o.type(i).is_shard() && is(i)) return true;
  }
  return false;
}

// (x, [indices...]): the indices are broadcast against each other.
AxisTypes Index(Operands& o) {
  const AxisType& x = o.type(0);
  c10::SmallVector<Meeting, 4> places;
  int64_t longest = 0;
  for (size_t i = 1; i < o.size(); ++i) {
    places.push_back({&o.type(i), o.sizes(i)});
    longest = std::max(longest, o.dims(i));
  }
  if (places.empty()) return {x};
  AxisType at = Meet(o, places, longest, Dependence::kAny);
  if (!at.is_known()) return {at};
  if (x.is(TypeKind::kVarying) || at.is(TypeKind::kVarying) || at.is(TypeKind::kOwnRows)) {
    return {AxisType::Of(TypeKind::kVarying)};
  }
  const auto taken = static_cast<int64_t>(places.size());
  const c10::SmallVector<int64_t, 4> indexed = IndexedDims(o, 1, o.size());
  const int64_t first = PlaceOfIndices(indexed);
  if (at.is_shard()) {
    at.dim += static_cast<int>(first);
    at.behind = -1;
  }
  // A mask selects elements beside its own: rows of the tensor that are its rank's.
  const auto wide = [&](size_t i) { return o.dims(i) > 1; };
  const auto other_rows = [&](size_t i) { return x.is_replicate() && !x.uniform_along(o.place(i) + o.type(i).dim); };
  if (AnyShardedMask(o, 1, o.size(), wide)) return {o.Unproven("no rule for a sharded mask of several dims")};
  if (x.is_replicate() && at.is_shard() && at.by_value && !o.backward()) {
    const auto same = [&](int64_t dim) { return x.uniform_along(dim); };
    if (!std::ranges::all_of(indexed, same)) return {o.Unproven(std::string(kUnknownOrigin))};
  }
  if (AnyShardedMask(o, 1, o.size(), other_rows)) {
    return {o.Fault("a sharded mask selects elements of a replicated tensor; each rank needs its shard of the tensor",
                    SuggestedFix::kTakeShard)};
  }
  if (x.is_shard() && o.dims(0) == taken + o.made_dims() - longest) {
    if (std::ranges::find(indexed, x.dim) == indexed.end()) {
      if (!at.is_replicate()) return {o.Fault("the tensor is sharded, so the indices must be replicated")};
      const int64_t before = std::ranges::count_if(indexed, [&](int64_t dim) { return dim < x.dim; });
      AxisType result = x;
      result.dim = static_cast<int>(x.dim - before + (x.dim - before >= first ? longest : 0));
      result.uniform = 0;
      return {result};
    }
    if (at.is_shard() && !at.by_value && !o.backward()) {
      return {o.Unproven(std::string(kUnknownOrigin))};
    }
    if (at.is_shard()) return {at};  // local indices
    return {o.Fault("global indices are used on a local shard")};
  }
  if (x.is_shard()) return {o.Unproven("no rule for a mask of several dims as the index of a sharded tensor")};
  if (x.is_partial())
    return {at.is_replicate()
                ? AxisTypes{x}
                : AxisTypes{o.Fault(
                      "a partial tensor is indexed with indices that differ between ranks; reduce the tensor first",
                      SuggestedFix::kMakeSum)}};
  AxisType result = at;
  result.uniform = 0;
  return {result};
}

// Whether the values of index_put are this rank's, where index `i` is sharded: sharded along the dim of the index, or
// the same along it.
bool FitsShardedIndex(const Operands& o, size_t i, c10::ArrayRef<int64_t> indexed) {
  const size_t last = o.size() - 1;
  const AxisType& values = o.type(last);
  if (o.is_mask(i)) return values.is_shard() || o.dims(last) == 0 || values.uniform_along(0);
  int64_t longest = 0;
  for (size_t j = 1; j < last; ++j) longest = std::max(longest, o.dims(j));
  const int64_t dims = o.made_dims() - static_cast<int64_t>(indexed.size()) + longest;  // of the indexed elements
  const int64_t dim = PlaceOfIndices(indexed) + longest - o.dims(i) + o.type(i).dim - (dims - o.dims(last));
  if (values.is_shard()) return values.dim == dim;
  return dim < 0 || o.sizes(last)[static_cast<size_t>(dim)] == 1 || values.uniform_along(dim);
}

// Values at sharded indices.
AxisType PutAtShards(Operands& o, c10::ArrayRef<int64_t> indexed, bool adds) {
  const AxisType& x = o.type(0);
  if (x.is_shard() && std::ranges::find(indexed, x.dim) == indexed.end())
    return o.Fault("sharded indices write into a tensor that is sharded along a dim that they do not index");
  if (!x.is_shard() && !(x.is_replicate() && x.zero))
    return o.Fault("values are written at sharded indices into a tensor that is neither sharded nor zero");
  for (size_t i = 1; i + 1 < o.size(); ++i) {
    if (o.type(i).is_shard() && !FitsShardedIndex(o, i, indexed))
      return o.Fault("the indices are sharded, but the values are not; each rank needs its shard of the values",
                     SuggestedFix::kTakeShard);
  }
  bool local = true;  // a mask, and indices of its elements, count from the start of the shard
  for (size_t i = 1; i + 1 < o.size(); ++i) {
    local = local && (!o.type(i).is_shard() || o.type(i).by_value || o.is_mask(i));
  }
  if (!local && !o.backward()) return o.Unproven(std::string(kUnknownOrigin));
  // A mask marks the elements beside its own.
  for (size_t i = 1; i + 1 < o.size(); ++i) {
    AxisType mask = o.type(i);
    if (!o.is_mask(i) || !mask.is_shard() || x.map == nullptr || x.dim != o.place(i) + mask.dim) continue;
    if (!MeetMaps(o, mask, x)) return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
  }
  if (x.is_shard()) return x;
  // The gradient of a replicated tensor, of which each rank has read its own elements.
  if (!local && adds) return AxisType::Partial();
  if (!local) return o.Unproven(std::string(kUnknownOrigin));
  const int64_t dim = indexed.size() == 1 ? indexed.front() : 0;
  AxisType result = AxisType::Shard(dim, o.made()[static_cast<size_t>(dim)]);
  if (x.dim == dim) result.map = x.map;
  return result;
}

// Sharded values at replicated indices.
AxisType PutShards(Operands& o, c10::ArrayRef<int64_t> indexed) {
  const size_t last = o.size() - 1;
  const AxisType& x = o.type(0);
  int64_t longest = 0;
  for (size_t i = 1; i < last; ++i) {
    if (o.is_mask(i) && o.dims(i) > 1) return o.Unproven("no rule for sharded values at a mask of several dims");
    longest = std::max(longest, o.dims(i));
  }
  AxisType result = o.type(last);
  // The dim of the values, among those of the same elements of x: the dims of the indices, and dims not indexed.
  const int64_t first = PlaceOfIndices(indexed);
  int64_t dim = result.dim + o.made_dims() - static_cast<int64_t>(indexed.size()) + longest - o.dims(last);
  if (dim >= first && dim < first + longest)
    return o.Fault(
        "the values are sharded along the indexed dims, but the indices are replicated; each rank needs its "
        "shard of the indices");
  if (dim >= first + longest) dim -= longest;
  for (const int64_t one : indexed) dim += one <= dim ? 1 : 0;
  result.dim = static_cast<int>(dim);
  result.behind = -1;
  if (x.is_replicate() && x.zero) return result;
  if (!x.is_shard() || !x.SameAs(result))
    return o.Fault("shards are written into a tensor that is not sharded in the same way");
  if (MeetMaps(o, result, x)) return result;
  return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
}

// (x, [indices...], values, accumulate).
AxisTypes IndexPut(Operands& o) {
  const size_t last = o.size() - 1;
  const AxisType& x = o.type(0);
  const AxisType& values = o.type(last);
  const bool adds = o.Flag(3);
  bool own = values.is(TypeKind::kVarying);
  bool cut = false;
  for (size_t i = 1; i < last; ++i) {
    if (o.type(i).is_partial())
      return {o.Fault("the indices are partial; reduce the indices first", SuggestedFix::kMakeSum)};
    own = own || o.type(i).is(TypeKind::kVarying) || o.type(i).is(TypeKind::kOwnRows);
    cut = cut || o.type(i).is_shard();
  }
  const bool zeros = x.is_replicate() && x.zero;
  if (own) return {adds && (x.is_partial() || zeros) ? AxisType::Partial() : AxisType::Of(TypeKind::kVarying)};
  if (values.is_partial()) {
    if (cut)
      return {
          o.Fault("partial values are written at sharded indices; reduce the values first", SuggestedFix::kMakeSum)};
    if (zeros || x.is_partial()) return {values};
    return {
        o.Fault("partial values are written into a tensor that is neither partial nor zero; reduce the values first",
                SuggestedFix::kMakeSum)};
  }
  if (cut) return {PutAtShards(o, IndexedDims(o, 1, last), adds)};
  if (values.is_shard()) return {PutShards(o, IndexedDims(o, 1, last))};
  if (x.is_shard()) return {o.Fault("a replicated tensor is written into a local shard at global indices")};
  return {x.is_partial()
              ? o.Fault("a replicated tensor is written into a partial tensor; reduce the partial tensor first",
                        SuggestedFix::kMakeSum)
              : AxisType::Replicate()};
}

// (x, dim, indices): elements along dim, for each position of the other dims.
AxisTypes Gather(Operands& o) {
  const AxisType& x = o.type(0);
  const AxisType& places = o.type(1);
  const int64_t dim = o.Dim(1, o.dims(0));
  if (places.is(TypeKind::kVarying) || x.is(TypeKind::kVarying) || places.is(TypeKind::kOwnRows)) {
    return {AxisType::Of(places.is(TypeKind::kOwnRows) ? TypeKind::kOwnRows : TypeKind::kVarying)};
  }
  if (places.is_partial())
    return {o.Fault("the indices are partial; reduce the indices first", SuggestedFix::kMakeSum)};
  if (x.is_shard() && x.dim == dim) {
    return {o.Fault(Phrase("global indices are used on a local shard of dim ", dim))};
  }
  if (x.is_partial())
    return {places.is_replicate()
                ? AxisTypes{x}
                : AxisTypes{o.Fault(
                      "a partial tensor is indexed with indices that differ between ranks; reduce the tensor first",
                      SuggestedFix::kMakeSum)}};
  if (x.is_shard() && places.is_shard()) {
    if (!x.SameAs(places)) return {o.Fault("the tensor and the indices are not sharded in the same way")};
    AxisType result = x;
    if (MeetMaps(o, result, places)) return {result};
    return {AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty)};
  }
  if (x.is_shard()) return {o.Fault("the tensor is sharded, so the indices must be sharded in the same way")};
  if (places.is_shard() && places.dim != dim && !x.uniform_along(places.dim)) {
    return {o.Fault("sharded indices are used on a replicated tensor; each rank needs its shard of the tensor",
                    SuggestedFix::kTakeShard)};
  }
  return {OfNewValues(places)};
}

// (x, dim, indices, source or value): into x along dim.
AxisTypes Scatter(Operands& o) {
  const int64_t dim = o.Dim(1, o.dims(0));
  const AxisType& places = o.type(1);
  const bool adds = o.name() == "scatter_add";
  if (places.is(TypeKind::kVarying)) {
    if (!adds) return {AxisType::Of(TypeKind::kVarying)};
    if (o.type(0).is_partial() || (o.type(0).is_replicate() && o.type(0).zero)) return {AxisType::Partial()};
    return {o.Fault(
        "values are added at indices that differ between ranks to a tensor that is neither partial nor zero; each rank "
        "would add only its own values")};
  }
  for (size_t i = 0; i < o.size(); ++i) {
    if (o.type(i).is_shard() && o.type(i).dim == dim) {
      return {o.Fault(Phrase("global indices are used along dim ", dim, ", which is sharded"))};
    }
  }
  const bool terms = o.size() > 2 && o.type(2).is_partial();
  if (terms && o.type(0).zero && places.is_replicate()) return {o.type(2)};
  const AxisType result = Meet(o, AllOperands(o), o.made_dims(), Dependence::kLinear);
  // Where the indices are shorter than x, they write into its first elements: those of another rank.
  for (size_t i = 0; i < o.size() && result.is_shard(); ++i) {
    if (o.dims(i) != o.made_dims()) continue;
    const auto at = static_cast<size_t>(result.dim);
    if (o.sizes(i)[at] != o.made()[at])
      return {o.Fault(Phrase("indices and values of the local length are written into the full dim ", result.dim))};
  }
  return {OfNewValues(result)};
}

// The indices of nonzero elements, one row for each. With shards of the first dim they are local.
AxisTypes NonZero(Operands& o) {
  const AxisType& x = o.type(0);
  if (x.is_replicate()) return {AxisType::Replicate()};
  if (x.is_shard() && x.dim == 0) return {AxisType::Shard(0, o.made()[0])};
  if (x.is_partial())
    return {o.Fault(
        "the nonzero positions of a partial tensor are not the nonzero positions of the sum; reduce the tensor first",
        SuggestedFix::kMakeSum)};
  return {AxisType::Of(TypeKind::kVarying)};
}

}  // namespace

void AddIndexRules(RuleTable& table) {
  table.AddAten({"embedding"}, Embedding);
  table.AddAten({"embedding_dense_backward"}, EmbeddingBackward);
  table.AddAten({"index_select"}, IndexSelect);
  table.AddAten({"index_add"}, IndexAdd);
  table.AddAten({"index"}, Index);
  table.AddAten({"index_put", "_index_put_impl"}, IndexPut);
  table.AddAten({"gather"}, Gather);
  table.AddAten({"scatter", "scatter_add"}, Scatter);
  table.AddAten({"nonzero"}, NonZero);
}

}  // namespace moonshard
