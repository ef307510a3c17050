// Operators that give the same elements another shape, or some of them.
//
// A view keeps the order of elements in memory, so a shard is followed by counting how many elements lie in front of
// it. It is right where the new shape has a dim that begins at or before that place and holds the shard with a constant
// number of full elements around it (`lead` in front, what lies behind flattened into it); if the shard's border falls
// inside of an element of the new dim, ranks would hold parts of other elements, and the view is refused.
//
// Local sizes do not always decide. Dims of size 1 have no place in memory, and a shard of one element may be in any
// dim that it was joined with: such a shard is `floating`, and an operator that does not fit it is unproven and not
// wrong. The code below prefers what models do: matmul folds batch dims, one head goes with its features, one token
// with the batch.
//
// Elements taken by place (slice, select, split) along a sharded dim are other elements on each rank and refused,
// except for all of it or whole parts of a packed dim. Their backwards put zeros around, which keeps the parts.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"
#include "engine/analysis/types/written_view.h"

namespace moonshard {
namespace {

int64_t SizeOf(at::IntArrayRef sizes, size_t d) { return std::max<int64_t>(sizes[d], 1); }

// A view makes the dims `to` of the dims `from` of a constant. Returns the one of `to` that has the dim which is as
// long as a shard, as it would have the shard; `to.second` if there is none. Of dims of size 1 the checker may choose
// another (OperatorChecker::CompareMade).
size_t LocalOf(const AxisType& type, at::IntArrayRef sizes, std::pair<size_t, size_t> from, at::IntArrayRef made,
               std::pair<size_t, size_t> to) {
  int64_t before = 1;
  size_t d = from.first;
  for (; d < from.second && !type.local_along(static_cast<int64_t>(d)); ++d) before *= SizeOf(sizes, d);
  if (d == from.second) return to.second;
  int64_t begin = 1;
  for (size_t j = to.first; j < to.second; ++j) {
    begin *= SizeOf(made, j);
    if (begin > before) return j;
  }
  return sizes[d] == 1 && to.first < to.second ? to.second - 1 : to.second;
}

// Calls visit(begin, end, made_begin, made_end) for each group of dims: [begin, end) of the one shape hold the same
// elements as [made_begin, made_end) of the other.
template <class Visit>
void ForEachGroup(at::IntArrayRef from, at::IntArrayRef to, Visit&& visit) {
  size_t i = 0;
  size_t j = 0;
  while (i < from.size() || j < to.size()) {
    const size_t begin = i;
    const size_t made = j;
    int64_t have = i < from.size() ? SizeOf(from, i++) : 1;
    int64_t want = j < to.size() ? SizeOf(to, j++) : 1;
    while (have != want) {
      if (have < want && i < from.size()) {
        have *= SizeOf(from, i++);
      } else if (have > want && j < to.size()) {
        want *= SizeOf(to, j++);
      } else {
        return;
      }
    }
    visit(begin, i, made, j);
  }
}

bool IsUniform(const AxisType& type, at::IntArrayRef sizes, size_t begin, size_t end) {
  for (size_t d = begin; d < end; ++d) {
    if (sizes[d] != 1 && !type.uniform_along(static_cast<int64_t>(d))) return false;
  }
  return true;
}

// Which dims of the new shape are uniform: those of a group of dims that hold the same elements, where the whole group
// was.
AxisType ViewUniform(const AxisType& type, at::IntArrayRef from, at::IntArrayRef to) {
  AxisType result = type;
  result.uniform = 0;
  result.local = 0;
  if (type.uniform == 0) return result;
  ForEachGroup(from, to, [&](size_t begin, size_t end, size_t made, size_t made_end) {
    if (!IsUniform(type, from, begin, end)) return;
    for (size_t d = made; d < made_end; ++d) result.uniform |= uint64_t{1} << d;
    if (type.local == 0) return;
    const size_t local = LocalOf(type, from, {begin, end}, to, {made, made_end});
    if (local < made_end) result.local |= uint64_t{1} << local;
  });
  return result;
}

// The dim along which a constant is as long as a shard, if a view joins it with dims of other elements; else -1.
int64_t JoinedLocal(const AxisType& type, at::IntArrayRef from, at::IntArrayRef to) {
  int64_t joined = -1;
  if (type.local == 0) return joined;
  ForEachGroup(from, to, [&](size_t begin, size_t end, size_t, size_t) {
    if (IsUniform(type, from, begin, end)) return;
    for (size_t d = begin; d < end; ++d)
      joined = type.local_along(static_cast<int64_t>(d)) ? static_cast<int64_t>(d) : joined;
  });
  return joined;
}

// Whether a dim of size 1 begins behind `before` elements, after `skip` others of size 1.
bool HasDimAt(at::IntArrayRef sizes, int64_t before, int skip) {
  int64_t begin = 1;
  for (size_t d = 0; d < sizes.size(); begin *= SizeOf(sizes, d), ++d) {
    if (begin == before && sizes[d] == 1 && skip-- == 0) return true;
  }
  return false;
}

// Why a shard of `type.length` elements that is made of heads cannot be opened into [rest, inner]; "" where it can.
// Parts of a head and several whole heads may be a dim of their own (pairs for a rotary embedding, groups of queries),
// but not what begins within one head and ends within another. As many rows as all ranks together have heads are the
// global head count in a forward that was written for one rank: each row is then a part of a head. Rows of parts of a
// head may also be meant (pairs for a rotary embedding): where sizes are compared, those decide.
std::string HeadFault(const Operands& o, const AxisType& type, int64_t rest, int64_t inner) {
  const std::string has = std::to_string(type.length / type.head) + " of " + std::to_string(type.heads) +
                          " heads of size " + std::to_string(type.head);
  if (inner % type.head != 0 && type.head % inner != 0) {
    return "a view cuts across heads: the shard has " + has + ", but the view makes rows of " + std::to_string(inner) +
           " elements";
  }
  if (!o.sizes_compared() && inner < type.head && rest == type.heads) {
    return "a view uses the global number of heads on a local shard, which has " + has +
           "; pass the head size to the view, and -1 for the number of heads";
  }
  return "";
}

// A dim of size 1 at `j`, where a shard of several elements begins, is one row of them (the one head of this rank) or a
// new dim in front of them. It is new where the next dim tells: it is as long as the shard, whose elements were joined
// with others behind them, so that the view takes them apart again; or longer than the shard's dim, so that the view
// joins them with what lies behind. Elsewhere it counts as the row until an operator needs the other reading
// (MoveToNextReading).
bool IsNewDim(const AxisType& type, at::IntArrayRef from, at::IntArrayRef to, size_t j) {
  const int64_t size = from[static_cast<size_t>(type.dim)] / type.lead;
  while (j < to.size() && to[j] == 1) ++j;
  if (j == to.size()) return false;
  return (size > type.length && to[j] == type.length) || to[j] > size;
}

// The view by which matmul makes one batch dim of all before the matrices, among them the shard's.
bool FoldsBatch(at::IntArrayRef from, at::IntArrayRef to, int dim) {
  const size_t dims = from.size();
  return to.size() == 3 && dims > 3 && static_cast<size_t>(dim) + 2 < dims && to[1] == from[dims - 2] &&
         to[2] == from[dims - 1];
}

// The map of dim `j` of the new shape, where the shard is in it. What was merged into the dim is flattened, what was
// taken off it is opened; dims behind it that are copies of one element stand for no elements of their own.
IndexMapPtr ViewMap(const AxisType& type, at::IntArrayRef from, at::IntArrayRef to, size_t j) {
  if (type.map == nullptr) return nullptr;
  const auto product = [](at::IntArrayRef sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  };
  const auto d = static_cast<size_t>(type.dim);
  const int64_t front = product(from.slice(0, d));
  const int64_t behind = product(from.slice(d + 1));
  const int64_t new_front = product(to.slice(0, j));
  const int64_t new_behind = product(to.slice(j + 1));
  if (front == 0 || behind == 0 || new_front == 0 || new_behind == 0) return nullptr;
  IndexMapPtr map = type.map;
  if (behind % new_behind == 0) {
    const int64_t merged = behind / new_behind;
    int64_t copied = 1;
    size_t e = d + 1;
    for (; e < from.size() && copied < merged && ((type.copies >> e) & 1) != 0; ++e) copied *= from[e];
    if (merged > 1) map = copied == merged ? map->Repeated(merged) : map->Flattened(1, merged);
  } else {
    map = new_behind % behind == 0 ? map->Opened(1, new_behind / behind) : nullptr;
  }
  if (map == nullptr || front == new_front) return map;
  if (front % new_front == 0) return map->Flattened(front / new_front, 1);
  return new_front % front == 0 ? map->Opened(new_front / front, 1) : nullptr;
}

// Whether a row of all elements of the shard is no row on every rank, of which some have fewer, or no row of heads,
// which have the order of the ranks, while the next dim is as long as the shard: a batch of one sequence was joined
// with the tokens, which are shards of other lengths or in zigzag.
bool IsNoRow(const AxisType& type, at::IntArrayRef from, at::IntArrayRef to, size_t j) {
  if (type.map == nullptr) return false;
  const IndexMapPtr rows = ViewMap(type, from, to, j);
  if (rows == nullptr ? type.map->even() : rows->in_order() || rows->shared()) return false;
  while (j < to.size() && to[j] == 1) ++j;
  return j < to.size() && to[j] == type.length;
}

// Heads that the same view repeats: it joins them with the copies behind them.
bool IsRepeated(const AxisType& type, at::IntArrayRef from) {
  const auto next = static_cast<size_t>(type.dim) + 1;
  return next < from.size() && from[next] > 1 && ((type.copies >> next) & 1) != 0;
}

// A shard without elements has no place among the others, but is the one dim of size 0 in both shapes.
AxisType ViewEmptyShard(Operands& o, const AxisType& type, at::IntArrayRef from, at::IntArrayRef to) {
  const auto empty = [](at::IntArrayRef sizes) { return std::ranges::count(sizes, 0) == 1; };
  const auto in_front = [](at::IntArrayRef sizes, size_t d) {
    return std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(d), int64_t{1},
                           std::multiplies<>());
  };
  const auto d = static_cast<size_t>(type.dim);
  if (!empty(from) || !empty(to) || from[d] != 0) return o.Unproven("a view of a shard without elements");
  const auto j = static_cast<size_t>(std::ranges::find(to, 0) - to.begin());
  const int64_t before = type.lead * in_front(from, d);
  if (before % in_front(to, j) != 0) return o.Unproven("a view of a shard without elements");
  AxisType result = type;
  result.dim = static_cast<int>(j);
  result.lead = before / in_front(to, j);
  result.map = ViewMap(type, from, to, j);
  result.copies = 0;
  result.behind = -1;
  return result;
}

// The shard begins behind `before` elements of what lies in front of it; in the new shape there is a dim that begins no
// later and holds it, or the shard is cut.
AxisType ViewShard(Operands& o, const AxisType& type, at::IntArrayRef from, at::IntArrayRef to) {
  if (type.length == 0) return ViewEmptyShard(o, type, from, to);
  int64_t before = type.lead;
  for (int d = 0; d < type.dim; ++d) before *= SizeOf(from, static_cast<size_t>(d));
  // Dims of size 1 right in front of the shard stay in front of it.
  int skip = 0;
  if (type.lead == 1) {
    for (int d = type.dim - 1; d >= 0 && from[static_cast<size_t>(d)] == 1; --d) ++skip;
  }
  // Unless the new shape has no such dims left.
  const bool alone = from[static_cast<size_t>(type.dim)] == type.lead;
  const bool repeated = IsRepeated(type, from);
  const int in_front = skip;
  while (skip > 0 && type.length == 1 && alone && !repeated && !HasDimAt(to, before, skip) &&
         HasDimAt(to, before, skip - 1)) {
    --skip;
  }
  const bool taken = skip < in_front;  // for one of the dims of size 1 in front
  // A shard of one element has no place of its own where dims are joined: it goes with what it was opened from, else
  // with what lies in front.
  const bool joins_front =
      type.length == 1 && alone && (type.inner == 1 || FoldsBatch(from, to, type.dim)) && !HasDimAt(to, before, skip);
  int64_t begin = 1;
  for (size_t j = 0; j < to.size(); begin *= SizeOf(to, j), ++j) {
    if (begin > before || before % begin != 0) continue;
    const int64_t lead = before / begin;
    const int64_t size = SizeOf(to, j);
    if (lead == 1 && size == 1 && skip > 0) {
      --skip;
      continue;
    }
    const bool one = lead == 1 && size == 1 && type.length > 1;
    // One row of several parts would cut across them.
    const bool parts = type.parts.size() > 1;
    if (one && (parts || IsNewDim(type, from, to, j) || IsNoRow(type, from, to, j))) continue;
    // Features of a product, which matmul takes apart into a batch and its tokens, stay the last dim.
    const bool product = o.name() == "_unsafe_view" || (o.backward() && from[0] == 1);
    if (one && product && from.size() == 2 && type.dim == 1 && to.back() == from.back()) continue;
    const bool behind = lead == size && joins_front;
    if (size % lead != 0 || (lead >= size && !(lead == 1 && size == 1) && !behind)) continue;
    AxisType result = type;
    result.dim = static_cast<int>(j);
    result.map = ViewMap(type, from, to, j);
    result.copies = 0;
    result.lead = lead;
    result.behind = lead == size && lead > 1 && j + 1 < to.size() ? static_cast<int>(j) + 1 : -1;
    result.floating = type.floating || taken || (type.length == 1 && alone && type.inner == 1 && size != 1);
    const int64_t rest = size / lead;  // of the new dim, from where the shard begins
    if (rest >= type.length) {
      if (type.length != 0 && rest % type.length != 0) break;
      if (rest != type.length) result.heads = 0;  // rows of what was opened: the heads of queries and keys may differ
      if (type.length != 0) result.inner = std::max<int64_t>(1, type.inner / (rest / type.length));
      // The dims in front were joined by the same view: the one head of a rank is one of their elements, or goes with
      // its own.
      const bool joined = j > 0 && type.dim > 0 && SizeOf(to, j - 1) != SizeOf(from, static_cast<size_t>(type.dim) - 1);
      result.floating = result.floating || (joined && type.length == 1 && alone && rest > 1);
      return result;
    }
    const int64_t inner = type.length / rest;  // what each of its elements was made of
    if (type.length % rest != 0) break;
    // Rows of what each rank has are rows of the full dim only in an order that a map tells. Where sizes are not
    // compared nothing is proven, and the lengths are judged alone.
    const bool decides = type.chosen != nullptr || o.sizes_compared();
    if (type.map == nullptr && inner > 1 && decides && !o.backward() && !type.of_gradient) {
      return o.Unproven(Phrase("a view takes dim ", type.dim,
                               " apart, and it is not known which elements of the dim each rank holds"));
    }
    if (type.heads > 0 && type.head > 1) {
      const bool across = inner % type.head != 0 && type.head % inner != 0;
      // Heads of another number that end where shards do: the indices are known, the heads are not those declared.
      if (across && result.map != nullptr) result.heads = 0;
      const std::string fault = result.heads == 0 ? "" : HeadFault(o, type, rest, inner);
      if (!fault.empty()) return o.Fault(fault);
      result.head = std::max<int64_t>(1, type.head / inner);
    }
    result.length = rest;
    result.inner = type.inner * inner;
    result.behind = static_cast<int>(j) + 1;
    for (int64_t& part : result.parts) {
      if (part % inner != 0) return o.Fault("a view cuts across the parts of a fused dim");
      part /= inner;
    }
    return result;
  }
  const bool nothing = std::ranges::find(from, 0) != from.end();
  if (nothing) return o.Unproven("a view of a shard without elements");
  return o.Fault(Phrase("a view cuts across the shards of dim ", type.dim));
}

// Shards of several parts of one size, which a view takes apart into a row for each, are the same shard of every row:
// queries, keys and values of one projection, [.., 3 x heads x features] seen as [.., 3, heads, features]. Where a row
// is not taken apart further, as many rows as parts are heads: [.., 2, features] of two parts with one head each.
AxisType RowsOfParts(const AxisType& type, at::IntArrayRef from, at::IntArrayRef to) {
  const auto parts = static_cast<int64_t>(type.parts.size());
  const bool alike = std::ranges::all_of(type.parts, [&](int64_t part) { return part == type.parts.front(); });
  if (parts < 2 || !alike || type.lead != 1 || from[static_cast<size_t>(type.dim)] != type.length) return type;
  int64_t before = 1;
  for (int d = 0; d < type.dim; ++d) before *= SizeOf(from, static_cast<size_t>(d));
  int64_t begin = 1;
  for (size_t j = 0; j < to.size() && begin <= before; begin *= SizeOf(to, j), ++j) {
    const int64_t rows = to[j];
    if (begin != before || rows < 2 || parts % rows != 0) continue;
    const int64_t row = type.length / rows;
    if (j + 2 >= to.size() || SizeOf(to, j + 1) * SizeOf(to, j + 2) != row) continue;
    AxisType result = type;
    result.lead = rows;
    result.length = row;
    result.parts.resize(static_cast<size_t>(parts / rows));
    if (result.parts.size() == 1) result.parts.clear();
    result.heads = 0;  // were those of all parts
    return result;
  }
  return type;
}

// And back in a backward, where the parts are the features of the last dim, as those of the projection's weight are.
AxisType PartsOfRows(Operands& o, AxisType type, at::IntArrayRef to) {
  const bool last = type.is_shard() && to.size() > 1 && static_cast<size_t>(type.dim) + 1 == to.size();
  if (!last || !o.backward() || type.lead == 1 || type.length <= 1) return type;
  const int64_t row = to.back() / type.lead;
  const int64_t parts = std::max<int64_t>(1, static_cast<int64_t>(type.parts.size()));
  if (to.back() % type.lead != 0 || row % type.length != 0 || row % parts != 0) return type;
  type.parts.assign(static_cast<size_t>(type.lead * parts), row / parts);
  type.length = to.back();
  type.lead = 1;
  type.inner = 1;
  type.behind = -1;
  return type;
}

AxisTypes View(Operands& o) {
  const AxisType& type = o.type(0);
  if (type.is_shard()) {
    const AxisType rows = RowsOfParts(type, o.sizes(0), o.made());
    return {PartsOfRows(o, ViewShard(o, rows, o.sizes(0), o.made()), o.made())};
  }
  if (const int64_t joined = JoinedLocal(type, o.sizes(0), o.made()); joined >= 0) {
    // The elements are equal along some of the joined dims only.
    if (type.local != uint64_t{1} << joined)
      return {o.Unproven("a view of a constant that is as long as a shard along two dims")};
    return {ViewShard(o, AxisType::Shard(joined, o.sizes(0)[static_cast<size_t>(joined)]), o.sizes(0), o.made())};
  }
  return {ViewUniform(type, o.sizes(0), o.made())};
}

c10::SmallVector<int64_t, 8> Identity(int64_t dims) {
  c10::SmallVector<int64_t, 8> to(static_cast<size_t>(dims));
  std::iota(to.begin(), to.end(), 0);
  return to;
}

AxisTypes Transpose(Operands& o) {
  const int64_t dims = o.dims(0);
  auto to = Identity(dims);
  if (o.name() == "t") {
    if (dims == 2) std::swap(to[0], to[1]);
  } else if (dims > 0) {
    std::swap(to[static_cast<size_t>(o.Dim(1, dims))], to[static_cast<size_t>(o.Dim(2, dims))]);
  }
  return {MapDims(o.type(0), to)};
}

AxisTypes Permute(Operands& o) {
  const int64_t dims = o.dims(0);
  auto to = Identity(dims);
  int64_t place = 0;
  for (int64_t d : o.Ints(1)) to[static_cast<size_t>(d < 0 ? d + dims : d)] = place++;
  return {MapDims(o.type(0), to)};
}

AxisTypes Unsqueeze(Operands& o) {
  const int64_t at = o.Dim(1, o.dims(0) + 1);
  auto to = Identity(o.dims(0));
  for (int64_t& d : to) d += d >= at ? 1 : 0;
  AxisType type = MapDims(o.type(0), to);
  if (type.is_replicate() && at < 64) type.uniform |= uint64_t{1} << at;
  return {type};
}

// A dim of size 1 that is taken for the row of a shard of several elements (IsNewDim) goes as the new dim that it may
// be, where sizes are compared.
AxisTypes Squeeze(Operands& o) {
  const int64_t dims = o.dims(0);
  auto to = Identity(dims);
  std::vector<int64_t> which = o.Ints(1);
  if (o.arguments() < 2) which = std::vector<int64_t>(to.begin(), to.end());
  for (int64_t& d : which) d = d < 0 ? d + dims : d;
  AxisType type = o.type(0);
  int64_t place = 0;
  for (int64_t d = 0; d < dims; ++d) {
    const bool goes = o.sizes(0)[static_cast<size_t>(d)] == 1 && std::ranges::find(which, d) != which.end();
    if (goes && type.is_shard() && type.dim == d &&
        !(type.inner > 1 && MoveToNextReading(type, o.sizes(0), o.sizes_compared(), /*terms=*/false))) {
      return {AxisType::Of(TypeKind::kVarying)};
    }
    to[static_cast<size_t>(d)] = goes ? -1 : place++;
  }
  return {MapDims(type, to)};
}

// New dims in front, and dims of size 1 made longer: the same along them.
AxisTypes Expand(Operands& o) {
  const int64_t added = o.made_dims() - o.dims(0);
  const AxisType& from = o.type(0);
  if (from.is_shard() && o.sizes(0)[static_cast<size_t>(from.dim)] != o.made()[static_cast<size_t>(from.dim + added)]) {
    return {o.Fault(Phrase("dim ", from.dim,
                           " has shards of one element and is expanded; each rank would repeat its own element"))};
  }
  auto to = Identity(o.dims(0));
  for (int64_t& d : to) d += added;
  AxisType type = MapDims(o.type(0), to);
  uint64_t& same = type.is_replicate() ? type.uniform : type.copies;
  for (int64_t d = 0; d < o.made_dims() && d < 64; ++d) {
    const bool is_new = d < added || o.sizes(0)[static_cast<size_t>(d - added)] == 1;
    if (is_new && !(type.is_shard() && type.dim == d)) same |= uint64_t{1} << d;
  }
  return {type};
}

// repeat(x, times): new dims in front, and each dim several times.
AxisTypes Repeat(Operands& o) {
  const AxisType& from = o.type(0);
  if (!from.is_replicate()) return {o.Unproven("no rule")};
  const int64_t added = o.made_dims() - o.dims(0);
  auto to = Identity(o.dims(0));
  for (int64_t& d : to) d += added;
  AxisType type = MapDims(from, to);
  for (int64_t d = 0; d < o.made_dims() && d < 64; ++d) {
    if (d < added || o.sizes(0)[static_cast<size_t>(d - added)] == 1) type.uniform |= uint64_t{1} << d;
  }
  return {type};
}

// Elements [begin, begin + length) of dim `dim`, of a tensor that is in shards along it: all of them, or whole parts.
AxisType Cut(Operands& o, const AxisType& type, int64_t dim, int64_t size, int64_t begin, int64_t length) {
  if (type.local_along(dim) && length != size) {
    // As many elements on every number of ranks, unless the checker finds that the end follows the shard.
    AxisType some = type;
    some.local &= ~(uint64_t{1} << dim);
    return some;
  }
  if (!type.is_shard() || type.dim != dim || length == size) return type;
  const std::string what = Phrase("dim ", dim);
  if (type.parts.empty() || type.lead != 1 || type.length == 0) {
    return o.Fault("elements of " + what + " are taken by global index from a local shard");
  }
  const int64_t unit = size / type.length;  // elements of the dim in each of the shard's
  AxisType result = type;
  result.map = type.map == nullptr ? nullptr : type.map->Taken(begin, length);
  result.parts.clear();
  int64_t at = 0;
  int64_t held = 0;
  for (int64_t part : type.parts) {
    const int64_t end = at + part * unit;
    if (at >= begin && end <= begin + length && part > 0) {
      result.parts.push_back(part);
      held += part;
    } else if (at < begin + length && end > begin && part > 0) {
      std::string parts;
      for (int64_t one : type.parts) parts.append(parts.empty() ? "" : ", ").append(std::to_string(one * unit));
      return o.Fault("elements of " + what + " are taken across its fused parts, which have lengths " + parts +
                     Phrase("; the slice begins at ", begin) + Phrase(" and has length ", length));
    }
    at = end;
  }
  result.length = held;
  result.fused = std::make_shared<const std::vector<int64_t>>(type.parts);
  if (result.parts.size() <= 1) result.parts.clear();
  return result;
}

// The same of features of the last dim that are full in front and shared behind: what is taken of them is one or both.
AxisType CutFeatures(Operands& o, int64_t dim, int64_t size, int64_t begin, int64_t length) {
  if (o.type(0).is_owned() && o.type(0).dim == dim) return o.Unproven("a part of a dim that one rank owns");
  AxisType type = Cut(o, o.type(0), dim, size, begin, length);
  if (dim + 1 == o.dims(0))
    type.zeros_behind = std::clamp<int64_t>(type.zeros_behind - (size - begin - length), 0, length);
  if (!type.is_mixed() || !type.is_replicate() || dim + 1 != o.dims(0)) return type;
  const int64_t border = size - type.last;
  type.full = begin + length <= border;
  type.shared = begin >= border;
  type.last = type.full || type.shared ? 0 : begin + length - border;
  return type;
}

constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();

// Every `step`th element of a dim in shards: of plain ones whose borders are multiples of it, the same of the full dim.
AxisTypes Strided(Operands& o, int64_t dim, int64_t size, int64_t begin, int64_t step) {
  const AxisType& type = o.type(0);
  AxisType result = type;
  if (type.is_mixed() && dim + 1 == o.dims(0))
    return {o.Unproven("no rule for a strided slice of a tensor that is shared in its last features only")};
  if (type.local_along(dim)) result.local &= ~(uint64_t{1} << dim);
  if (!type.is_shard() || type.dim != dim) return {result};
  const int64_t made = o.made()[static_cast<size_t>(dim)];
  if (type.map == nullptr || !type.parts.empty() || type.lead != 1 || type.length != size || size % step != 0 ||
      begin < 0 || begin >= step || made != size / step) {
    return {o.Unproven("a strided slice of a sharded dim")};
  }
  // Pairs that lie on two ranks, or begin otherwise on one than on the other, are no pairs of the full dim.
  result.map = type.map->Opened(1, step);
  if (result.map == nullptr)
    return {o.Fault(Phrase("a strided slice of dim ", dim, " does not align with the shards of the dim"))};
  result.length = made;
  result.heads = 0;
  result.inner = 1;
  result.behind = -1;
  return {result};
}

// Whether a slice takes all elements that values chose on this rank because its end is their number or beyond it, or
// its begin, counted from the end, their first or before it: with other values the same slice leaves elements out.
bool TakesAllChosen(const Operands& o, int64_t dim, int64_t size) {
  const AxisType& type = o.type(0);
  const bool is_chosen = type.is_shard() && type.dim == dim && type.chosen != nullptr;
  const bool bounded = o.Int(2) != 0 || o.Int(3, kToTheEnd) != kToTheEnd;
  return is_chosen && o.made()[static_cast<size_t>(dim)] == size && bounded;
}

AxisTypes Slice(Operands& o) {
  const int64_t dim = o.Dim(1, o.dims(0));
  const int64_t size = o.sizes(0)[static_cast<size_t>(dim)];
  int64_t begin = o.Int(2);
  const int64_t step = o.name() == "slice" ? o.Int(4, 1) : 1;
  if (step != 1) return Strided(o, dim, size, begin, step);
  if (begin < 0) begin += size;
  if (TakesAllChosen(o, dim, size)) {
    return {o.Unproven(Phrase("a slice with given bounds of dim ", dim, ", whose elements values have chosen"))};
  }
  return {CutFeatures(o, dim, size, std::clamp<int64_t>(begin, 0, size), o.made()[static_cast<size_t>(dim)])};
}

AxisTypes Select(Operands& o) {
  const int64_t dim = o.Dim(1, o.dims(0));
  if (o.type(0).is_shard() && o.type(0).dim == dim) {
    return {o.Fault(Phrase("one element of dim ", dim, " is taken by global index from a local shard"))};
  }
  auto to = Identity(o.dims(0));
  for (int64_t& d : to) d = d == dim ? -1 : d > dim ? d - 1 : d;
  return {MapDims(o.type(0), to)};
}

// Groups of elements that values have chosen: their sizes follow values on every rank, as those of the full tensor do,
// and only all groups together are a shard again (rules/joins.cc). A backward splits where its forward joined, and the
// Choice was known there.
AxisTypes SplitIntoGroups(const Operands& o, int64_t dim) {
  AxisTypes out;
  for (size_t i = 0; i < o.products(); ++i) {
    Choice group;
    group.of = o.type(0).chosen;
    group.group = i;
    group.groups = o.products();
    out.push_back(o.type(0));
    out.back().length = o.made(i)[static_cast<size_t>(dim)];
    out.back().chosen = std::make_shared<const Choice>(std::move(group));
  }
  return out;
}

AxisTypes Split(Operands& o) {
  const int64_t dim = o.Dim(2, o.dims(0));
  const AxisType& from = o.type(0);
  if (from.is_shard() && from.dim == dim && from.chosen != nullptr && (from.chosen->grouped || o.backward())) {
    return SplitIntoGroups(o, dim);
  }
  // Sizes that the program gives may be those of groups, or follow the size of a shard.
  const bool given = o.products() == 1 || o.name().ends_with("split_with_sizes");
  if (from.is_shard() && from.dim == dim && from.chosen != nullptr && given) {
    return {o.Unproven(Phrase("a split of dim ", dim, ", whose elements values have chosen"))};
  }
  const int64_t size = o.sizes(0)[static_cast<size_t>(dim)];
  AxisTypes out;
  int64_t begin = 0;
  for (size_t i = 0; i < o.products(); ++i) {
    const int64_t length = o.made(i)[static_cast<size_t>(dim)];
    out.push_back(CutFeatures(o, dim, size, begin, length));
    begin += length;
  }
  return out;
}

AxisTypes Unbind(Operands& o) {
  const int64_t dim = o.Dim(1, o.dims(0));
  if (o.type(0).is_shard() && o.type(0).dim == dim) {
    return {o.Fault(
        Phrase("dim ", dim, " is split into its elements (unbind), but each rank has only a shard of the dim"))};
  }
  auto to = Identity(o.dims(0));
  for (int64_t& d : to) d = d == dim ? -1 : d > dim ? d - 1 : d;
  return {MapDims(o.type(0), to)};
}

// The gradient of a slice or of one element: zeros around it.
AxisTypes PutBack(Operands& o) {
  const std::vector<int64_t> full = o.Ints(1);
  const int64_t dims = static_cast<int64_t>(full.size());
  const int64_t dim = o.Dim(2, dims);
  AxisType type = o.type(0);
  const bool select = o.name() == "select_backward";
  auto to = Identity(o.dims(0));
  for (int64_t& d : to) d += select && d >= dim ? 1 : 0;
  type = MapDims(type, to);
  // Zeros are put along `dim`; along the others the elements are as equal as they were.
  if (dim < 64) type.uniform &= ~(uint64_t{1} << dim);
  type.local &= type.uniform;
  const bool in_a_row = select || o.Int(5, 1) == 1;
  if (!select && in_a_row && dim + 1 == dims) {
    const int64_t size = full[static_cast<size_t>(dim)];
    const int64_t begin = std::clamp<int64_t>(o.Int(3) < 0 ? o.Int(3) + size : o.Int(3), 0, size);
    const int64_t end = begin + o.sizes(0).back();
    if (type.is_replicate()) type.zeros_behind = size - end;
    if (type.is_partial() && end == size && begin > 0) type.last = size - begin;
  }
  if (type.is_shard() && type.dim == dim && !select &&
      full[static_cast<size_t>(dim)] != o.sizes(0)[static_cast<size_t>(dim)]) {
    // A part of a fused dim: the other parts are zeros here and come from their own slices; all of them are added up.
    type.map = nullptr;
    type.length = full[static_cast<size_t>(dim)];
    type.parts.clear();
    if (type.fused != nullptr) {
      const int64_t sum = std::accumulate(type.fused->begin(), type.fused->end(), int64_t{0});
      for (int64_t part : *type.fused) type.parts.push_back(part * type.length / sum);
    }
  }
  return {type};
}

// A box of the elements, as the backward of a write into a view takes its part of the gradient.
AxisTypes AsStrided(Operands& o) {
  const std::vector<int64_t> strides = o.Ints(2);
  const std::optional<BoxInBase> box = FindBox(o.made(), strides, o.sizes(0), o.strides(0));
  const AxisType type = TypeInBase(o.type(0), box ? &*box : nullptr);
  return {type.is(TypeKind::kUnproven) ? o.Unproven("the layout of the strided view is not known") : type};
}

// constant_pad_nd(x, pad, value): numbers around it, in pairs from the last dim on.
AxisTypes Pad(Operands& o) {
  const std::vector<int64_t> pad = o.Ints(1);
  const int64_t dims = o.dims(0);
  const bool zeros = o.arguments() < 3 || (o.argument(2).isScalar() && o.argument(2).toScalar().equal(0));
  AxisType type = o.type(0);
  for (size_t i = 0; i < pad.size(); ++i) {
    const int64_t padded = dims - 1 - static_cast<int64_t>(i / 2);
    if (pad[i] != 0 && padded < 64) type.uniform &= ~(uint64_t{1} << padded);
  }
  type.local &= type.uniform;
  if (type.is_partial() && !zeros) {
    return {
        o.Fault("a partial tensor is padded with a nonzero number, which would be counted once per rank; reduce the "
                "tensor first",
                SuggestedFix::kMakeSum)};
  }
  for (size_t i = 0; i < pad.size(); ++i) {
    if (pad[i] == 0 || !type.is_shard() || type.dim != dims - 1 - static_cast<int64_t>(i / 2)) continue;
    return {o.Fault(Phrase("dim ", type.dim, " is padded, but each rank has only a shard of the dim"))};
  }
  if (!type.is_shard()) type.zero = type.zero && zeros;
  return {type};
}

// [.., 2] as one complex number, and back.
AxisTypes AsComplex(Operands& o) {
  const int64_t last = o.dims(0) - 1;
  if (o.type(0).is_shard() && o.type(0).dim == last)
    return {
        o.Fault("the real and the imaginary part of a number are on different ranks, because the last dim is sharded")};
  auto to = Identity(o.dims(0));
  to.back() = -1;
  return {MapDims(o.type(0), to)};
}

AxisTypes AsReal(Operands& o) { return {MapDims(o.type(0), Identity(o.dims(0)))}; }

// Along a dim in shards the order of elements is another one; elsewhere it is only another order.
AxisTypes Reorder(Operands& o) {
  if (o.name() == "roll" && o.Ints(2).empty() && o.type(0).is_shard()) {
    return {o.Fault("the elements are reordered within each local shard only")};
  }
  for (int64_t d : o.Ints(o.name() == "roll" ? 2 : 1)) {
    if (d < 0) d += o.dims(0);
    if (o.type(0).is_shard() && o.type(0).dim == d) {
      return {o.Fault(Phrase("dim ", d, " is reordered within each local shard only"))};
    }
  }
  return {o.type(0)};
}

// diagonal(x, offset, dim1, dim2): the elements with equal indices in two dims, which are the last dim of the result.
AxisTypes Diagonal(Operands& o) {
  const AxisType& type = o.type(0);
  const int64_t first = o.Dim(2, o.dims(0));
  const int64_t second = o.Dim(3, o.dims(0));
  if (type.is_shard() && (type.dim == first || type.dim == second))
    return {o.Fault(Phrase("the diagonal of a matrix that is sharded along dim ", type.dim))};
  auto to = Identity(o.dims(0));
  int64_t place = 0;
  for (int64_t d = 0; d < o.dims(0); ++d) to[static_cast<size_t>(d)] = d == first || d == second ? -1 : place++;
  return {MapDims(type, to)};
}

// (gradient, sizes of x, offset, dim1, dim2): zeros around the diagonal.
AxisTypes DiagonalBackward(Operands& o) {
  const auto dims = static_cast<int64_t>(o.Ints(1).size());
  const int64_t first = o.Dim(3, dims);
  const int64_t second = o.Dim(4, dims);
  const AxisType& gradient = o.type(0);
  if (gradient.is_shard() && gradient.dim == o.dims(0) - 1) return {o.Fault("the gradient of a diagonal is sharded")};
  c10::SmallVector<int64_t, 8> to;
  for (int64_t d = 0; d < dims; ++d) {
    if (d != first && d != second) to.push_back(d);
  }
  to.push_back(first);
  AxisType result = MapDims(gradient, to);
  for (const int64_t d : {first, second}) result.uniform &= d < 64 ? ~(uint64_t{1} << d) : ~uint64_t{0};
  result.local &= result.uniform;
  return {result};
}

// unfold(x, dim, size, step): windows along a dim, whose elements are a new last dim. Windows of a shard would need
// elements of other ranks.
AxisTypes Unfold(Operands& o) {
  const int64_t dim = o.Dim(1, o.dims(0));
  if (o.type(0).is_shard() && o.type(0).dim == dim) {
    return {o.Fault(Phrase("windows along dim ", dim, ", of which each rank has only a shard"))};
  }
  AxisType result = o.type(0);
  if (dim < 64) result.uniform &= ~(uint64_t{1} << dim);
  result.local &= result.uniform;
  return {result};
}

// (gradient, sizes of x, dim, size, step): windows added up where they overlap.
AxisTypes UnfoldBackward(Operands& o) {
  const std::vector<int64_t> sizes = o.Ints(1);
  const auto dims = static_cast<int64_t>(sizes.size());
  const AxisType& gradient = o.type(0);
  if (gradient.is_shard() && (gradient.dim == o.Dim(2, dims) || gradient.dim == dims))
    return {o.Fault("the windows of a gradient are sharded; each rank would add up its own windows only")};
  AxisType result = gradient;
  for (const int64_t d : {o.Dim(2, dims), dims}) result.uniform &= d < 64 ? ~(uint64_t{1} << d) : ~uint64_t{0};
  result.local &= result.uniform;
  return {result};
}

}  // namespace

void AddViewRules(RuleTable& table) {
  table.AddAten({"view", "_unsafe_view", "_reshape_alias", "reshape", "view_copy", "_reshape_copy"}, View);
  table.AddAten({"t", "transpose"}, Transpose);
  table.AddAten({"permute"}, Permute);
  table.AddAten({"unsqueeze"}, Unsqueeze);
  table.AddAten({"squeeze"}, Squeeze);
  table.AddAten({"expand", "expand_copy"}, Expand);
  table.AddAten({"repeat"}, Repeat);
  table.AddAten({"slice", "narrow"}, Slice);
  table.AddAten({"select"}, Select);
  table.AddAten({"split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"}, Split);
  table.AddAten({"unbind"}, Unbind);
  table.AddAten({"slice_backward", "select_backward"}, PutBack);
  table.AddAten({"flip", "roll"}, Reorder);
  table.AddAten({"diagonal"}, Diagonal);
  table.AddAten({"diagonal_backward"}, DiagonalBackward);
  table.AddAten({"unfold"}, Unfold);
  table.AddAten({"unfold_backward"}, UnfoldBackward);
  table.AddAten({"as_strided"}, AsStrided);
  table.AddAten({"constant_pad_nd"}, Pad);
  table.AddAten({"view_as_complex"}, AsComplex);
  table.AddAten({"view_as_real"}, AsReal);
}

}  // namespace moonshard
