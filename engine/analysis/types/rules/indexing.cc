// Operators that take elements by tensors of indices: lookups, and their backwards, which add at indices.
//
// Indices are global. On a local shard of the dim they are wrong on every rank but the first, unless they were shifted
// and masked. Only the code that does so knows it, and marks the ids as own rows (NoteOwnRows). A lookup by own rows is
// own rows until the rows of other ranks are masked to zero; every row is then on exactly one rank and zero elsewhere,
// which is partial. Shards of other dims of the table pass through.
//
// The exception are local indices, which `nonzero` of a shard returns (local_in), and masks, which stand for them. They
// are right for a shard with the same map, and wrong for a replicated tensor and for any other shard. A list of indices
// may have both: in x[rows, columns] with x sharded along the rows, `rows` must be local and `columns` must not be.
// The elements that they choose are a shard without a map (Choice).
//
// Adding at indices is the transpose of a lookup. Slices that are added to zeros are partial if each rank adds
// different slices; added to a replicated tensor they would count on one rank only, so that is refused.
#include <algorithm>
#include <bit>

#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

constexpr std::string_view kUnknownOrigin =
    "it is not known whether the indices into a shard count from the start of the shard or of the full dim";

bool DiffersByRank(const AxisType& type) { return type.is(TypeKind::kVarying) || type.is(TypeKind::kOwnRows); }

AxisType BadMaps(const Operands& o) {
  return AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty);
}

// Whether indices of type `index` into dim `dim` of x are local where x has a shard of the dim, and global elsewhere.
// Any indices are right along a dim of equal elements. Reports to `o`.
bool IndicesFit(Operands& o, const AxisType& x, int64_t dim, const AxisType& index) {
  const bool along = x.is_shard() && x.dim == dim;
  if (index.local_in == nullptr) {
    if (!along) return true;
    if (index.is_shard()) {
      o.Unproven(std::string(kUnknownOrigin));
    } else {
      o.Fault(Phrase("global indices are used on a local shard of dim ", dim));
    }
    return false;
  }
  if (along && x.map != nullptr && *x.map != *index.local_in && !o.backward()) {
    o.Fault(Phrase("indices into a shard are used on a shard of dim ", dim, " that holds different elements: ") +
            x.map->ToString() + "; the indices count in a shard where " + index.local_in->ToString());
    return false;
  }
  if (along && x.map == nullptr && !o.backward()) {
    o.Unproven(Phrase("it is not known which elements of dim ", dim, " each rank holds"));
    return false;
  }
  if (along || (x.is_replicate() && x.uniform_along(dim))) return true;
  o.Fault(Phrase("indices into the shard of each rank are used along dim ", dim,
                 ", which is not sharded; each rank needs its shard of the tensor"),
          SuggestedFix::kTakeShard);
  return false;
}

// The type of the elements of dim `dim` at local indices, of which the result has `length`.
AxisType ChosenBy(const AxisType& index, int64_t dim, int64_t length) {
  AxisType result = AxisType::Shard(dim, length);
  result.chosen = index.chosen;
  result.map = index.map;
  return result;
}

// The type of x, all of whose elements are equal, after a write at local indices along `dim`.
AxisType ShardOfConstant(Operands& o, int64_t dim, const AxisType& index) {
  AxisType result = AxisType::Shard(dim, o.made()[static_cast<size_t>(dim)]);
  result.map = index.local_in;
  if (result.map != nullptr && result.map->length(o.rank()) != result.length)
    return o.Fault(Phrase("indices into the shard of each rank are used along dim ", dim, ", which has another size"));
  if (result.map == nullptr) result.chosen = index.chosen;
  // Zeros like a shard, of which a view has flattened the dims in front: they are opened again behind the writes.
  const AxisType& zeros = o.type(0);
  const bool alike = zeros.map != nullptr && result.map != nullptr && zeros.dim == dim && *zeros.map == *result.map;
  if (alike && zeros.lead * zeros.length == result.length) {
    result.lead = zeros.lead;
    result.length = zeros.length;
  }
  return result;
}

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
    if (ids.is(TypeKind::kOwnRows)) {
      if (ids.map == nullptr || table.map == nullptr || *ids.map == *table.map)
        return {AxisType::Of(TypeKind::kOwnRows)};
      return {o.Fault(Phrase("ids were shifted to the rows of another table: to ", ids) + ", where " +
                      ids.map->ToString() + "; in this table " + table.map->ToString())};
    }
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
  AxisType rows = ids;  // equal ids have equal rows
  rows.zero = false;
  rows.unwritten = false;
  return {rows};
}

// Whether ids that are as long as a shard, and equal, are those of the gradient's rows.
bool AreOfRows(const AxisType& ids, const AxisType& gradient, int64_t features) {
  if (!ids.is_replicate() || ids.local == 0) return false;
  return gradient.is_replicate() ? !gradient.zero
                                 : gradient.is_shard() && gradient.dim != features && ids.local_along(gradient.dim);
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
  if (AreOfRows(ids, gradient, o.dims(0) - 1)) return {AxisType::Partial()};
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
  if (DiffersByRank(places) || x.is(TypeKind::kVarying)) return {AxisType::Of(TypeKind::kVarying)};
  if (places.is_partial())
    return {o.Fault("the indices are partial; reduce the indices first", SuggestedFix::kMakeSum)};
  if (!IndicesFit(o, x, dim, places)) return {BadMaps(o)};
  if (x.is_shard() && x.dim == dim) return {ChosenBy(places, dim, o.made()[static_cast<size_t>(dim)])};
  if (places.is_shard()) {
    if (!x.is_replicate()) return {o.Fault("the indices are sharded, so the tensor must be replicated")};
    AxisType result = places;
    result.dim = static_cast<int>(dim);
    return {result};
  }
  AxisType result = x;
  if (dim < 64 && !x.uniform_along(dim)) result.uniform &= ~(uint64_t{1} << dim);
  if (dim < 64) result.local &= ~(uint64_t{1} << dim);
  if (dim < 64 && places.local_along(0) && result.uniform_along(dim)) result.local |= uint64_t{1} << dim;
  return {result};
}

// Slices at sharded indices, each rank its own.
AxisType AddAtShards(Operands& o, int64_t dim) {
  const AxisType& x = o.type(0);
  const AxisType& places = o.type(1);
  if (!(x.is_shard() && x.dim == dim) && !(x.is_replicate() && x.uniform_along(dim)))
    return o.Fault(
        "slices at sharded indices are added to a tensor that is neither sharded along the same dim nor zero");
  // The gradient of a replicated tensor, of which each rank has read its own elements.
  if (places.local_in == nullptr && x.is_replicate() && x.zero && o.backward()) return AxisType::Partial();
  if (places.local_in == nullptr) return o.Unproven(std::string(kUnknownOrigin));
  if (!IndicesFit(o, x, dim, places)) return BadMaps(o);
  return x.is_shard() ? x : ShardOfConstant(o, dim, places);
}

// What is added at indices to x along dims of which one is in `local` of the replicated values or indices: each rank
// adds as many as a shard is long.
AxisType AddedLocally(Operands& o, const AxisType& x) {
  if (x.is_replicate() && x.zero) return AxisType::Partial();
  return o.Unproven("values that are as long as a shard are added to a tensor that is not zero");
}

// The dims other than `dim` along which the elements are equal in both x and what is written into it.
AxisType OfEqualSlices(const AxisType& x, const AxisType& written, int64_t dim) {
  AxisType result = AxisType::Replicate();
  result.uniform = x.uniform & written.uniform;
  if (dim < 64) result.uniform &= ~(uint64_t{1} << dim);
  result.local = (x.local | written.local) & result.uniform;
  return result;
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
  if (DiffersByRank(x)) return {AxisType::Of(TypeKind::kVarying)};
  if (DiffersByRank(source) || DiffersByRank(places)) {
    if (x.is_partial() || zeros) return {AxisType::Partial()};
    return {o.Fault(
        "slices that differ between ranks are added to a tensor that is neither partial nor zero; each rank would add "
        "only its own slices")};
  }
  if (source.is_partial()) {
    if (!places.is_replicate())
      return {o.Fault("partial slices are added at indices that differ between ranks; reduce the slices first",
                      SuggestedFix::kMakeSum)};
    if (zeros) return {source};
    if (x.is_partial() && x.mean != source.mean) return {o.Unproven("a partial mean is combined with a partial sum")};
    if (x.is_partial()) return {source};
    return {o.Fault("partial slices are added to a tensor that is neither partial nor zero; reduce the slices first",
                    SuggestedFix::kMakeSum)};
  }
  if (places.is_shard() && source.is_replicate()) {
    if (!source.uniform_along(dim))
      return {o.Fault("the indices are sharded, but the slices are not; each rank needs its shard of the slices",
                      SuggestedFix::kTakeShard)};
    return {AddAtShards(o, dim)};
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
      return {BadMaps(o)};
    }
    return {AddAtShards(o, dim)};
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
    const auto of_source = static_cast<size_t>(source.dim);
    if (!x.is_shard() && x.uniform_along(source.dim) && o.sizes(0)[of_source] == o.sizes(2)[of_source]) return {source};
    return {o.Fault("shards are added to a tensor that is not sharded along the same dim")};
  }
  if (x.is_shard() && x.dim != dim && source.uniform_along(x.dim)) return {x};
  if (x.is_shard()) return {o.Fault("replicated slices are added to shards; each rank needs its shard of the slices")};
  if ((source.local_along(dim) || places.local != 0) && !source.zero) return {AddedLocally(o, x)};
  return {OfEqualSlices(x, source, dim)};
}

// A tensor of an index list.
struct ListedIndex {
  size_t operand = 0;
  int64_t dim = 0;   // the first dim of x that it indexes
  int64_t dims = 1;  // how many: a mask indexes as many as it has
  // Along one list dim: a mask stands for one list of indices for each of its dims.
  AxisType type;
  int64_t local_dim = -1;  // the dim of x into which its indices are local; -1: the indices are global
};

struct IndexList {
  c10::SmallVector<ListedIndex, 4> all;
  int64_t indexed = 0;  // number of dims of x that are indexed
  int64_t dims = 0;     // number of dims of the indices after broadcasting, which replace the indexed dims
  int64_t at = 0;  // where they are among the dims of the elements: at the indexed dims if these are adjacent, else 0
  AxisType type;   // after broadcasting, with `dim` counted among these dims

  bool indexes(int64_t dim) const {
    return std::ranges::any_of(all, [&](const ListedIndex& one) { return dim >= one.dim && dim < one.dim + one.dims; });
  }
  // The dim of the elements that dim `dim` of x becomes, which is not indexed.
  int64_t ElementDim(int64_t dim) const {
    int64_t made = dim;
    for (const ListedIndex& one : all) made -= one.dim < dim ? one.dims : 0;
    return made + (made >= at ? dims : 0);
  }
};

// What a mask chooses along its sharded dim. The elements of all its dims are chosen in the order of memory, so only
// those of a shard of the first dim stay together.
AxisType ChosenByMask(const AxisType& mask, at::IntArrayRef sizes) {
  if (!mask.is_shard()) return mask.is_replicate() ? AxisType::Replicate() : mask;
  AxisType result = AxisType::Shard(0, 0);
  Choice choice;
  choice.in_order = mask.is_in_order() && mask.lead == 1;
  for (int64_t d = 0; d < mask.dim; ++d) choice.in_order = choice.in_order && sizes[static_cast<size_t>(d)] == 1;
  result.chosen = std::make_shared<const Choice>(choice);
  return result;
}

// The index list of operands `first` to `last`. `elements`: the sizes of the indexed elements; empty: not known.
IndexList ListOf(Operands& o, size_t first, size_t last, at::IntArrayRef elements) {
  IndexList list;
  int64_t in_masks = 0;  // the dims that masks have beside their first
  for (size_t i = first; i < last; ++i) {
    ListedIndex one;
    one.operand = i;
    one.dim = o.place(i) + in_masks;
    one.type = o.type(i);
    if (o.is_mask(i)) {
      one.dims = o.dims(i);
      if (one.type.is_shard()) one.local_dim = one.dim + one.type.dim;
      one.type = ChosenByMask(one.type, o.sizes(i));
      in_masks += one.dims - 1;
    } else if (one.type.local_in != nullptr) {
      one.local_dim = one.dim;
    }
    list.indexed += one.dims;
    list.dims = std::max(list.dims, o.is_mask(i) ? 1 : o.dims(i));
    list.all.push_back(std::move(one));
  }
  const ListedIndex& back = list.all.back();
  list.at = back.dim + back.dims - list.all.front().dim == list.indexed ? list.all.front().dim : 0;
  // A mask is along the last list dim, where a list of another length would not fit.
  const bool known = list.dims > 0 && list.at + list.dims <= static_cast<int64_t>(elements.size());
  const int64_t of_masks = known ? elements[static_cast<size_t>(list.at + list.dims - 1)] : 0;
  c10::SmallVector<Meeting, 4> meeting;
  for (ListedIndex& one : list.all) {
    if (o.is_mask(one.operand) && one.type.is_shard()) one.type.length = of_masks;
    meeting.push_back({&one.type, o.is_mask(one.operand) ? at::IntArrayRef(of_masks) : o.sizes(one.operand)});
  }
  const auto of_one = [&](const ListedIndex& one) { return one.dims == 0; };
  list.type = std::ranges::any_of(list.all, of_one) && !o.All(TypeKind::kReplicate)
                  ? o.Unproven("no rule for a mask without dims")
                  : Meet(o, meeting, list.dims, Dependence::kAny);
  list.type.behind = -1;
  return list;
}

// Whether each index of the list is local along the sharded dim of x, and global along the other dims. Reports to `o`.
bool ListFits(Operands& o, const IndexList& list) {
  const AxisType& x = o.type(0);
  for (const ListedIndex& one : list.all) {
    const AxisType& index = o.type(one.operand);
    if (!o.is_mask(one.operand)) {
      if (!IndicesFit(o, x, one.dim, index)) return false;
      continue;
    }
    const bool along = x.is_shard() && x.dim >= one.dim && x.dim < one.dim + one.dims;
    if (index.is_shard() && along) {
      AxisType mask = index;
      mask.dim = static_cast<int>(one.local_dim);
      if (!mask.SameAs(x)) {
        o.Fault("a sharded mask selects elements of a tensor that is sharded along another dim");
        return false;
      }
      if (!MeetMaps(o, mask, x)) return false;
    } else if (along) {
      o.Fault(Phrase("a mask that is not sharded selects elements of a local shard of dim ", x.dim));
      return false;
    } else if (index.is_shard() && !(x.is_replicate() && x.uniform_along(one.local_dim))) {
      o.Fault(
          "a sharded mask selects elements of a tensor that is not sharded along the same dim; each rank needs its "
          "shard of the tensor",
          SuggestedFix::kTakeShard);
      return false;
    }
  }
  return true;
}

// The type of elements of a replicated tensor at replicated indices: `at`, with the dims along which they are equal.
AxisType OfElements(const Operands& o, const IndexList& list, AxisType at) {
  const AxisType& x = o.type(0);
  bool alike = true;  // whichever index is taken
  const auto set = [](uint64_t& dims, int64_t d) { dims |= d < 64 ? uint64_t{1} << d : 0; };
  for (int64_t d = 0; d < o.dims(0); ++d) {
    if (list.indexes(d)) {
      alike = alike && x.uniform_along(d);
      continue;
    }
    if (x.uniform_along(d)) set(at.uniform, list.ElementDim(d));
    if (x.local_along(d)) set(at.local, list.ElementDim(d));
  }
  for (int64_t d = 0; d < list.dims; ++d) {
    if (alike || list.type.uniform_along(d)) set(at.uniform, list.at + d);
    if (list.type.local_along(d)) set(at.local, list.at + d);
  }
  return at;
}

// (x, [indices...]): the indices are broadcast against each other.
AxisTypes Index(Operands& o) {
  const AxisType& x = o.type(0);
  if (o.size() == 1) return {x};
  const IndexList list = ListOf(o, 1, o.size(), o.made());
  AxisType at = list.type;
  if (!at.is_known()) return {at};
  if (x.is(TypeKind::kOwnRows) && at.is_replicate()) return {x};
  if (DiffersByRank(x) || DiffersByRank(at)) return {AxisType::Of(TypeKind::kVarying)};
  if (x.is_partial())
    return {at.is_replicate()
                ? AxisTypes{x}
                : AxisTypes{o.Fault(
                      "a partial tensor is indexed with indices that differ between ranks; reduce the tensor first",
                      SuggestedFix::kMakeSum)}};
  if (x.is_shard() && !list.indexes(x.dim)) {
    if (!at.is_replicate()) return {o.Fault("the tensor is sharded, so the indices must be replicated")};
    AxisType result = x;
    result.dim = static_cast<int>(list.ElementDim(x.dim));
    result.behind = -1;
    result.uniform = 0;
    return {result};
  }
  if (!ListFits(o, list)) return {BadMaps(o)};
  if (at.is_shard()) at.dim += static_cast<int>(list.at);
  at.uniform = 0;
  at.local = 0;
  if (!x.is_replicate() || !at.is_replicate()) return {at};
  for (size_t i = 1; i < o.size(); ++i) {
    if (o.is_mask(i) && o.type(i).local != 0)
      return {o.Unproven("elements are selected by a constant mask that is as long as a shard")};
  }
  return {OfElements(o, list, at)};
}

// The elements that an operator writes: their sizes and the list of their indices in x. `values` is the operand with
// the values, which are broadcast to these sizes.
struct Written {
  const IndexList& list;
  size_t values;
  int64_t dims;  // of the elements
};

// The dim of the values that is broadcast to dim `dim` of the elements; negative: the values do not have it.
int64_t DimOfValues(const Operands& o, const Written& written, int64_t dim) {
  return dim - (written.dims - o.dims(written.values));
}

// Whether replicated values are the same along dim `dim` of the elements.
bool SameAlong(const Operands& o, const Written& written, int64_t dim) {
  const int64_t own = DimOfValues(o, written, dim);
  return own < 0 || o.sizes(written.values)[static_cast<size_t>(own)] == 1 || o.type(written.values).uniform_along(own);
}

// Whether the values have the elements of the shard `elements`, whose dim is counted among those of the elements.
// Reports to `o`.
bool ValuesFit(Operands& o, const Written& written, AxisType elements, std::string_view fault) {
  const AxisType& values = o.type(written.values);
  const int64_t dim = elements.dim;
  elements.dim = static_cast<int>(DimOfValues(o, written, dim));
  if (values.is_shard() && values.SameAs(elements)) return MeetMaps(o, elements, values);
  if (values.is_replicate() && SameAlong(o, written, dim)) return true;
  o.Fault(std::string(fault), SuggestedFix::kTakeShard);
  return false;
}

// Values at sharded indices.
AxisType PutAtShards(Operands& o, const Written& written, bool adds) {
  const AxisType& x = o.type(0);
  const IndexList& list = written.list;
  if (x.is_shard() && !list.indexes(x.dim))
    return o.Fault("sharded indices write into a tensor that is sharded along a dim that they do not index");
  const ListedIndex* local = nullptr;
  for (const ListedIndex& one : list.all) {
    if (one.local_dim < 0) continue;
    if (local != nullptr && local->local_dim != one.local_dim)
      return o.Fault("indices into the shard of each rank are used along two dims");
    local = &one;
  }
  const bool constant = x.is_replicate() && (local != nullptr ? x.uniform_along(local->local_dim) : x.zero);
  if (!x.is_shard() && !constant)
    return o.Fault("values are written at sharded indices into a tensor that is neither sharded nor zero");
  AxisType elements = list.type;
  elements.dim += static_cast<int>(list.at);
  if (!ValuesFit(o, written, elements,
                 "the indices are sharded, but the values are not; each rank needs its shard of the values"))
    return BadMaps(o);
  if (!ListFits(o, list)) return BadMaps(o);
  if (x.is_shard()) return x;
  // The gradient of a replicated tensor, of which each rank has read its own elements.
  if (local == nullptr && adds && o.backward()) return AxisType::Partial();
  if (local == nullptr) return o.Unproven(std::string(kUnknownOrigin));
  AxisType index = o.type(local->operand);
  if (o.is_mask(local->operand)) index.local_in = index.map;
  return ShardOfConstant(o, local->local_dim, index);
}

// Sharded values at replicated indices.
AxisType PutShards(Operands& o, const Written& written) {
  const AxisType& x = o.type(0);
  const IndexList& list = written.list;
  AxisType result = o.type(written.values);
  int64_t dim = result.dim + written.dims - o.dims(written.values);
  if (dim >= list.at && dim < list.at + list.dims)
    return o.Fault(
        "the values are sharded along the indexed dims, but the indices are replicated; each rank needs its "
        "shard of the indices");
  int64_t of_x = 0;
  while (of_x + 1 < o.dims(0) && (list.indexes(of_x) || list.ElementDim(of_x) != dim)) ++of_x;
  result.dim = static_cast<int>(of_x);
  result.behind = -1;
  if (o.sizes(0)[static_cast<size_t>(of_x)] != o.sizes(written.values)[static_cast<size_t>(o.type(written.values).dim)])
    return o.Fault(Phrase("shards of one element are written along dim ", of_x, ", which is longer"));
  if (x.is_replicate() && x.uniform_along(of_x)) return result;
  if (!x.is_shard() || !x.SameAs(result))
    return o.Fault("shards are written into a tensor that is not sharded in the same way");
  return MeetMaps(o, result, x) ? result : BadMaps(o);
}

// Whether one of the operands `first` to `last`, which are indices, is partial. Reports to `o`.
bool AnyPartial(Operands& o, size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) {
    if (!o.type(i).is_partial()) continue;
    o.Fault("the indices are partial; reduce the indices first", SuggestedFix::kMakeSum);
    return true;
  }
  return false;
}

// Values written or added at a list of indices into x, operand 0.
AxisTypes Put(Operands& o, const Written& written, bool adds) {
  const AxisType& x = o.type(0);
  const AxisType& values = o.type(written.values);
  const AxisType& at = written.list.type;
  const bool zeros = x.is_replicate() && x.zero;
  if (DiffersByRank(values) || DiffersByRank(at) || DiffersByRank(x)) {
    // At the same places of zeros on every rank, what is written is what is added.
    const bool terms = adds ? x.is_partial() || zeros : zeros && at.is_replicate();
    return {terms ? AxisType::Partial() : AxisType::Of(TypeKind::kVarying)};
  }
  if (!at.is_known()) return {at};
  if (values.is_partial()) {
    if (at.is_shard())
      return {
          o.Fault("partial values are written at sharded indices; reduce the values first", SuggestedFix::kMakeSum)};
    if (zeros) return {values};
    if (x.is_partial() && x.mean != values.mean) return {o.Unproven("a partial mean is combined with a partial sum")};
    if (x.is_partial()) return {values};
    return {
        o.Fault("partial values are written into a tensor that is neither partial nor zero; reduce the values first",
                SuggestedFix::kMakeSum)};
  }
  if (at.is_shard()) return {PutAtShards(o, written, adds)};
  if (values.is_shard()) return {PutShards(o, written)};
  if (x.is_shard()) {
    constexpr std::string_view kFault = "a replicated tensor is written into a local shard at global indices";
    if (written.list.indexes(x.dim)) return {o.Fault(std::string(kFault))};
    return {SameAlong(o, written, written.list.ElementDim(x.dim)) ? x : o.Fault(std::string(kFault))};
  }
  if (x.is_partial())
    return {o.Fault("a replicated tensor is written into a partial tensor; reduce the partial tensor first",
                    SuggestedFix::kMakeSum)};
  bool local = at.local != 0;
  for (int64_t d = 0; d < written.list.dims; ++d) {
    const int64_t own = DimOfValues(o, written, written.list.at + d);
    local = local || (own >= 0 && values.local_along(own));
  }
  if (local && adds && !values.zero) {
    if (std::popcount(at.local) > 1) return {o.Unproven("indices that are as long as a shard along two dims")};
    return {AddedLocally(o, x)};
  }
  AxisType result = AxisType::Replicate();
  for (int64_t d = 0; d < o.dims(0) && d < 64; ++d) {
    const bool same = x.is_replicate() && x.uniform_along(d) && !written.list.indexes(d) &&
                      SameAlong(o, written, written.list.ElementDim(d));
    if (same) result.uniform |= uint64_t{1} << d;
  }
  result.local = x.local & result.uniform;
  return {result};
}

// (x, [indices...], values, accumulate).
AxisTypes IndexPut(Operands& o) {
  const size_t last = o.size() - 1;
  if (last == 1) return {Meet(o, AllOperands(o), o.made_dims(), Dependence::kLinear)};
  if (AnyPartial(o, 1, last)) return {BadMaps(o)};
  const IndexList list = ListOf(o, 1, last, {});
  return {Put(o, {list, last, o.made_dims() - list.indexed + list.dims}, o.Flag(3))};
}

// (x, dim, indices, source): the source's slices written into x at the indices.
AxisTypes IndexCopy(Operands& o) {
  if (AnyPartial(o, 1, 2)) return {BadMaps(o)};
  IndexList list;
  ListedIndex one;
  one.operand = 1;
  one.dim = o.Dim(1, o.dims(0));
  one.type = o.type(1);
  if (one.type.local_in != nullptr) one.local_dim = one.dim;
  list.indexed = 1;
  list.dims = 1;
  list.at = one.dim;
  list.type = o.type(1);
  list.all.push_back(std::move(one));
  return {Put(o, {list, 2, o.made_dims()}, /*adds=*/false)};
}

// (x, dim, indices): elements along dim, for each position of the other dims.
AxisTypes Gather(Operands& o) {
  const AxisType& x = o.type(0);
  const AxisType& places = o.type(1);
  const int64_t dim = o.Dim(1, o.dims(0));
  const auto as_long = [&](int d) { return o.sizes(0)[static_cast<size_t>(d)] == o.sizes(1)[static_cast<size_t>(d)]; };
  if (places.is(TypeKind::kVarying) || x.is(TypeKind::kVarying) || places.is(TypeKind::kOwnRows)) {
    return {AxisType::Of(places.is(TypeKind::kOwnRows) ? TypeKind::kOwnRows : TypeKind::kVarying)};
  }
  if (x.is(TypeKind::kOwnRows)) return {AxisType::Of(TypeKind::kVarying)};
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
    if (!as_long(x.dim))
      return {o.Fault(Phrase("the indices are shorter than the tensor along the sharded dim ", x.dim))};
    AxisType result = x;
    return {MeetMaps(o, result, places) ? result : BadMaps(o)};
  }
  if (x.is_shard() && places.uniform_along(x.dim) && as_long(x.dim)) return {x};
  if (x.is_shard()) return {o.Fault("the tensor is sharded, so the indices must be sharded in the same way")};
  if (places.is_shard() && places.dim != dim && !x.uniform_along(places.dim)) {
    return {o.Fault("sharded indices are used on a replicated tensor; each rank needs its shard of the tensor",
                    SuggestedFix::kTakeShard)};
  }
  AxisType result = OfNewValues(places);
  if (!x.is_replicate() || !places.is_replicate()) return {result};
  const uint64_t along = dim < 64 ? uint64_t{1} << dim : 0;
  result.uniform = x.uniform & places.uniform & ~along;
  result.local = (x.local | places.local) & result.uniform;
  return {result};
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
  const bool of_zeros = o.size() > 2 && o.type(2).is_replicate() && o.type(2).zero;
  bool local = false;
  for (size_t i = 0; i < o.size(); ++i) {
    if (!o.type(i).is_replicate() || o.type(i).local == 0 || o.dims(i) != o.made_dims()) continue;
    local = local || (i > 0 && o.type(i).local_along(dim));
    for (int64_t d = 0; d < o.made_dims(); ++d) {
      const auto at = static_cast<size_t>(d);
      if (d != dim && o.type(i).local_along(d) && o.sizes(i)[at] != o.made()[at])
        return {o.Unproven("indices or values that are as long as a shard are written into a part of a tensor")};
    }
  }
  if (local && o.name() != "scatter" && !of_zeros) {
    if (!o.All(TypeKind::kReplicate)) return {o.Unproven("values that are as long as a shard are added to shards")};
    return {AddedLocally(o, o.type(0))};
  }
  const AxisType result = Meet(o, AllOperands(o), o.made_dims(), Dependence::kLinear);
  // Where the indices are shorter than x, they write into its first elements: those of another rank.
  for (size_t i = 0; i < o.size() && result.is_shard(); ++i) {
    if (o.dims(i) != o.made_dims()) continue;
    const auto at = static_cast<size_t>(result.dim);
    if (o.sizes(i)[at] != o.made()[at])
      return {o.Fault(Phrase("indices and values of the local length are written into the full dim ", result.dim))};
  }
  AxisType written = OfNewValues(result);
  if (result.is_replicate() && dim < 64) {
    written.uniform = result.uniform & ~(uint64_t{1} << dim);
    written.local = result.local & written.uniform;
  }
  return {written};
}

// The indices of nonzero elements, one row for each. Along the sharded dim they are local.
AxisTypes NonZero(Operands& o) {
  const AxisType& x = o.type(0);
  if (x.local != 0) return {o.Unproven("positions in a constant that is as long as a shard")};
  if (x.is_replicate()) return {AxisType::Replicate()};
  if (x.is_shard()) {
    if (x.map == nullptr)
      return {o.Unproven(Phrase("it is not known which elements of dim ", x.dim, " each rank holds"))};
    AxisType result = ChosenByMask(x, o.sizes(0));
    result.length = o.made()[0];
    result.local_in = x.map;
    result.local_column = o.dims(0) == 1 ? -1 : x.dim;
    return {result};
  }
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
  table.AddAten({"index_copy"}, IndexCopy);
  table.AddAten({"gather"}, Gather);
  table.AddAten({"scatter", "scatter_add"}, Scatter);
  table.AddAten({"nonzero"}, NonZero);
}

}  // namespace moonshard
