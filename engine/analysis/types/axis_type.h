// AxisType: the layout of one tensor along one mesh axis while a step runs. An AxisType has more kinds than the Layout
// that a plan declares (layout/layout.h), because operators also return tensors that never cross a module boundary:
//
//   replicate   every rank has the same values and uses them in the same way: the gradient is replicated
//   shared      every rank has the same values, and sharded computation uses them: the gradient is partial
//   shard(d)    each rank has a shard along dim d. `shard(0) after 4`: dim 0 is an unsharded dim of size 4 flattened
//               with a sharded dim behind it, as when [b, s/n, h] is viewed as [b * s/n, h] with b = 4. `packed`:
//               several shards one after the other, as in the output of a fused projection
//   partial     the full tensor is the sum of the ranks' tensors; `partial mean`: their mean
//   own rows    ids for a lookup in a table that is sharded by rows, shifted to the rows of this rank: ids of rows on
//               other ranks are not valid, and the results for these ids, which are own rows too, must be masked
//               (NoteOwnRows) before anything else is computed from them. `map`: of the table's rows, if known
//   routed      rows of the tokens of all ranks that belong to this rank's own experts (DeclareRouted), the
//               weights of these experts, and what is computed from both. May be combined with replicated tensors, but
//               not with a shard of the batch. As the gradient of a weight of these experts it is complete, as that of
//               a replicated parameter it is a term of a sum over the ranks
//   varying     the values differ between ranks in a way that no layout describes. With an `owner`, one rank has the
//               full tensor, and the others have no elements, or zeros (of_owner.h)
//   unproven    the layout is not known: an operator has no rule, or its rule does not cover the operands
//   faulty      the result of an operator with a fault: faults of operators that use this result are not reported
//
// `dim` is the sharded dim; `map` lists, for each rank, the indices of the full dim that the rank holds, in order.
// Rules compare the maps of tensors that are combined, so that a packed shard is not taken for a plain shard, or the
// second head for the first. A backward uses the indices of its forward, where the maps were compared; an unknown map
// in a backward is not an error.
//
// A mask or `nonzero` may choose the elements of a sharded dim (`chosen`). Such a shard has no map: the full tensor has
// the elements that rank 0 chose, then those of rank 1, and so on, if the dim that they were chosen from is sharded in
// this order, and else another order. The indices that `nonzero` returns are local indices (`local_in`), which are
// right only for a shard with the same map.
//
// Without a gradient, replicate and shared are the same. A replicated tensor is `uniform` along a dim if all elements
// along the dim are equal (zeros, an expanded dim): any slice along this dim has the same values, so the tensor also
// fits where a shard is expected. Along a dim in `local` the tensor is as long as a shard, and the full tensor has more
// of the equal elements (torch::ones of the sizes of a shard): a sum over the dim is partial, and what counts the
// elements in another way (a norm) is wrong.
//
// Along a data-parallel axis, a tensor from outside of the step has the kind replicate with `outside`: the tensor is
// either this rank's rows of the batch or a constant. The two cases need not be distinguished, because no plan declares
// a shard for such a tensor along this axis. The tensor may be combined with shards of the batch. A replicated result
// that is computed from the tensor is `outside` too. Every declared layout agrees with the tensor.
// Stage before: layouts of parameters and boundaries. Stage after: rules, which compute with types.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "engine/analysis/types/index_map.h"
#include "engine/analysis/types/of_batch.h"
#include "engine/layout/layout.h"

namespace moonshard {

enum class TypeKind : uint8_t { kReplicate, kShard, kPartial, kOwnRows, kRouted, kVarying, kUnproven, kFaulty };

// The elements that one mask or one `nonzero` chose along a sharded dim.
struct Choice {
  bool in_order = false;  // the full tensor has the elements of the ranks one after the other
  bool grouped = false;   // the elements are in groups, which a split takes apart (NoteGroups)
  // Of one group: what it was split from, its number and how many there are.
  std::shared_ptr<const Choice> of = nullptr;
  size_t group = 0;
  size_t groups = 0;
};

struct AxisType {
  TypeKind kind = TypeKind::kUnproven;
  bool full = false;  // of a replicate: the gradient is replicated
  // Of a replicate: the gradient is partial. If neither `full` nor `shared` is set, the layout of the gradient is not
  // known.
  bool shared = false;
  bool mean = false;  // of a partial: the mean over the ranks instead of the sum
  // Of a replicate: the last `last` features are `shared`, and the features before them are `replicate`. Of a partial:
  // the last `last` features are `partial`, and the features before them are `replicate`. 0: all features have the same
  // kind.
  int64_t last = 0;
  int64_t zeros_behind = 0;  // of a replicate: number of last features that are zeros, as in the gradient of a slice
  int dim = 0;               // of a shard, counted from 0
  // Of a shard: a view may have flattened unsharded dims into `dim`, in front of the shard and behind it:
  // local size of `dim` = lead * length * (elements behind).
  int64_t lead = 1;
  int64_t length = 0;
  // Of a shard: `inner` is the number of elements that a view split off behind each index, as d in [h * d] -> [h, d].
  // `behind` is the dim that holds these elements; -1: unknown.
  int64_t inner = 1;
  int behind = -1;
  std::vector<int64_t> parts;  // of a packed shard: the lengths of its parts, in order; else empty
  // Of a shard: the indices of the full dim `dim` that each rank holds; null: unknown, as in most gradients. Of a
  // replicate with the sizes of a shard (zeros_like): the map of this shard, along the `dim` of the shard, which also
  // has its `lead` and `length`.
  IndexMapPtr map;
  // Of a shard: set if values chose the elements along `dim`; `map` is null. Tensors with the same Choice have matching
  // elements at the same local indices.
  std::shared_ptr<const Choice> chosen;
  // Of a shard of integers: the values are local indices into a dim with this map; null: they are not local indices.
  IndexMapPtr local_in;
  // Of local indices of several dims (the matrix of `nonzero`): the column that has them, while the other columns have
  // indices into unsharded dims; -1: all values are local indices.
  int local_column = -1;
  bool of_gradient = false;  // of a shard without a map: computed from a gradient
  // Of a shard: bit d is set if dim d is expanded, so that all elements along dim d are the same.
  uint64_t copies = 0;
  // Of a shard: the ranks' shards are known to differ in length, as 7 rows on two ranks (4 and 3).
  bool uneven = false;
  // Of a shard that was sliced out of a packed shard: `parts` of the packed shard.
  std::shared_ptr<const std::vector<int64_t>> fused;
  uint64_t uniform = 0;  // of a replicate: bit d is set if all elements along dim d are equal
  uint64_t local = 0;    // of a replicate: the dims of `uniform` along which it is as long as a shard
  // Of a replicate: memory that no operator has written to. The host may have filled it (torch::tensor of a vector), so
  // an operator that reads it does not take the elements for equal.
  bool unwritten = false;
  // Of unwritten memory that was made with the sizes of a shard (empty_like): that shard; else null.
  std::shared_ptr<const AxisType> like;
  bool zero = false;      // of a replicate: all zeros, which can be added to a partial tensor
  bool outside = false;   // of a replicate: this rank's rows of the batch, or a constant
  bool floating = false;  // of a shard of length 1: the sharded dim is ambiguous after a view (views.cc)
  bool by_value = false;  // the tensor's sizes may depend on values (nonzero), not on a layout
  int64_t owner = -1;     // of varying: the rank that has the full tensor; -1: several or unknown ranks
  int64_t heads = 0;      // of a shard: the full number of heads; 0: not made of heads
  int64_t head = 0;       // of a shard made of heads: the number of elements of a head
  OfBatch batch;          // along a data-parallel axis, in a forward
  std::shared_ptr<const std::string> since;  // the operator or region from which the layout comes, for messages

  bool is(TypeKind other) const { return kind == other; }
  bool is_shard() const { return kind == TypeKind::kShard; }
  bool is_partial() const { return kind == TypeKind::kPartial; }
  bool is_replicate() const { return kind == TypeKind::kReplicate; }
  // Whether this is a shard whose full tensor has the elements of rank 0 along `dim`, then those of rank 1, and so on.
  bool is_in_order() const {
    return is_shard() && (chosen != nullptr ? chosen->in_order : map != nullptr && map->in_order());
  }
  // Whether every rank holds the full dim (one head on all ranks); such a shard is equivalent to `shared`.
  bool is_whole() const { return is_shard() && map != nullptr && map->whole(); }
  // Whether one rank holds the full dim and the others have no elements.
  bool is_owned() const { return is_shard() && map != nullptr && map->owned(); }
  bool is_mixed() const { return last > 0; }
  bool is_known() const { return kind != TypeKind::kUnproven && kind != TypeKind::kFaulty; }
  bool uniform_along(int64_t d) const { return ((uniform >> d) & 1) != 0; }
  bool local_along(int64_t d) const { return ((local >> d) & 1) != 0; }
  // Whether the kinds are equal, and for shards also `dim` and `lead`, for partial also `mean`. Maps, lengths and parts
  // are not compared.
  bool SameAs(const AxisType& other) const;
  std::string ToString() const;

  static AxisType Replicate();  // the layout of its gradient is not known
  static AxisType Full();
  static AxisType Shared();
  static AxisType Outside();
  static AxisType Uniform(int64_t dims);
  static AxisType Shard(int64_t dim, int64_t length);
  static AxisType Partial(bool mean = false);
  static AxisType Of(TypeKind kind);
  static AxisType OfOwner(int64_t owner);
};

// The types of one tensor: one for each mesh axis of more than one rank, in the order of the axes.
using TensorType = c10::SmallVector<AxisType, 2>;

// Returns the type of a tensor with layout `layout` and local shape `shape` on rank `rank` of `ranks`. `full_size` is
// the full size of the sharded dim; -1: unknown, and a plain or zigzag shard then counts as one of several shards of
// equal length, but a zigzag shard of an odd length as uneven, without a map, and a shard with an owner as long as the
// owner's. A negative dim of the layout counts from the last dim. The type is faulty if the tensor lacks the dim,
// varying if the full size of a shard with an owner is not known (on the other ranks) or does not fit `shape`.
AxisType TypeOfLayout(const Layout& layout, at::IntArrayRef shape, int64_t full_size, int64_t ranks, int64_t rank);

// Local sizes do not always determine which dim of a view's result is sharded (rules/views.cc). Changes `type`, the
// type of a tensor of size `sizes`, to the next candidate and returns true; returns false if there is no other
// candidate.
// `sizes_compared`: whether the sizes of the step are compared with the sizes at tp=1. Only with this comparison are
// the candidates tried in which a dim of size 1 is a new dim and not a shard of length 1.
// `terms`: set only in a backward, if an operator combines the tensor with a partial tensor or expands it, or if the
// tensor enters a region. If `terms` and `sizes_compared` are set, the last candidate for a shard of length 1 (neither
// `floating` nor `uneven`) is partial. Reason: the gradient of a tensor that was expanded along the sharded dim is a
// sum over that dim, and for length 1 the backward runs no operator for the sum.
bool MoveToNextReading(AxisType& type, at::IntArrayRef sizes, bool sizes_compared, bool terms);

}  // namespace moonshard
