// AxisType: the layout of one tensor along one mesh axis while a step runs. It has more kinds than the Layout that a
// plan declares (layout/layout.h), because operators make tensors that no module passes on:
//
//   replicate   the same on every rank, and used the same everywhere: its gradient is the same everywhere too
//   shared      the same on every rank, used by sharded compute: its gradient is partial
//   shard(d)    shards along dim d; `shard(0) after 4`: dim 0 is [4, shard, ...] flattened, as [b, s/n, h] viewed as
//               [b s/n, h]; `packed`: several shards one after the other, as a fused projection makes
//   partial     the tensor is the sum over the ranks; `partial mean`: it is their mean
//   own rows    a lookup in a table sharded by rows: correct for ids whose row this rank holds, arbitrary for
//               others; must be masked (NoteOwnRows)
//   varying     different on every rank, in a way that no layout describes
//   unproven    an operator without a rule made it
//   faulty      made by an operator that was refused: faults that follow from it are not reported
//
// `dim` is the sharded dim; `map` has, for each rank, the indices of the full dim that it holds, in order. Rules
// compare the maps of tensors that are combined, so that a packed shard is not taken for a plain one, or the second
// head for the first. A backward uses the indices of the forward, which were compared; a map that is unknown there is
// not an error.
//
// Without a gradient, replicate and shared are the same. A replicate is `uniform` along a dim if all its elements along
// the dim are equal (zeros, an expanded dim): it equals any shard of itself.
//
// Along a data-parallel axis a tensor from outside of the step is `outside`: a replicate that is either this rank's
// rows of the batch or a constant. Along that axis either is correct, because no plan shards such a tensor. It may be
// combined with shards of the batch, a tensor computed only from it is outside too, and its gradients count as partial.
// Stage before: layouts of parameters and boundaries. Stage after: rules, which compute with types.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "engine/analysis/types/index_map.h"
#include "engine/layout/layout.h"

namespace moonshard {

enum class TypeKind : uint8_t { kReplicate, kShard, kPartial, kOwnRows, kVarying, kUnproven, kFaulty };

struct AxisType {
  TypeKind kind = TypeKind::kUnproven;
  bool full = false;    // of replicate: its gradient is replicated
  bool shared = false;  // of replicate: its gradient is partial. If neither is set, nothing is known of its gradient
  bool mean = false;    // of partial
  // Of replicate: the last `last` features are shared, those before are full. Of partial: only the last `last` features
  // are partial, those before are replicated. 0: neither.
  int64_t last = 0;
  int64_t zeros_behind = 0;  // of replicate: this many of the last features are zeros, as in the gradient of a slice
  int dim = 0;               // of a shard, counted from 0
  // Of a shard: a view may have flattened unsharded dims into `dim`, in front of the shard and behind it:
  // local size of `dim` = lead * length * (elements behind).
  int64_t lead = 1;
  int64_t length = 0;
  // Of a shard: number of elements that a view split off behind each index, as head_dim in [h * d] -> [h, d]; and the
  // dim that holds them, -1: unknown.
  int64_t inner = 1;
  int behind = -1;
  std::vector<int64_t> parts;  // of a shard: the shard is these shards, one after the other; empty: one
  // Of a shard: the indices of the full dim `dim` that each rank holds; null: unknown, as in most gradients. Of a
  // replicate with the sizes of a shard (zeros_like): the map of that shard, along its `dim`.
  IndexMapPtr map;
  bool of_gradient = false;  // of a shard without a map: computed from a gradient, whose indices the forward has
  // Of a shard: bit d if dim d is expanded, so that all its elements are the same one.
  uint64_t copies = 0;
  // Of a shard: the ranks' shards are known to differ in length, as 7 rows on two ranks, which are 4 and 3.
  bool uneven = false;
  // Of a shard that was sliced out of a packed one: `parts` of the packed one.
  std::shared_ptr<const std::vector<int64_t>> fused;
  uint64_t uniform = 0;                      // of replicate: bit d where the value is the same along dim d
  bool zero = false;                         // of replicate: all zeros, which can be added to a partial tensor
  bool outside = false;                      // of replicate: this rank's rows of the batch, or a constant
  bool floating = false;                     // of a shard of length 1: its dim is ambiguous after a view (views.cc)
  bool by_value = false;                     // the tensor's sizes may depend on values (nonzero), not on a layout
  int64_t heads = 0;                         // of a shard: the number of heads of all ranks; 0: not made of heads
  int64_t head = 0;                          // of a shard made of heads: the number of elements of a head
  std::shared_ptr<const std::string> since;  // which operator made it partial or varying, for messages

  bool is(TypeKind other) const { return kind == other; }
  bool is_shard() const { return kind == TypeKind::kShard; }
  bool is_partial() const { return kind == TypeKind::kPartial; }
  bool is_replicate() const { return kind == TypeKind::kReplicate; }
  // Whether every rank holds the full dim (one head on all ranks); such a shard is equivalent to `shared`.
  bool is_whole() const { return is_shard() && map != nullptr && map->whole(); }
  bool is_mixed() const { return last > 0; }
  bool is_known() const { return kind != TypeKind::kUnproven && kind != TypeKind::kFaulty; }
  bool uniform_along(int64_t d) const { return ((uniform >> d) & 1) != 0; }
  // Whether the kinds are equal; for shards also `dim` and `lead`, for partial also `mean`. Maps, lengths and parts are
  // not compared.
  bool SameAs(const AxisType& other) const;
  std::string ToString() const;

  static AxisType Replicate();  // nothing is known of its gradient
  static AxisType Full();
  static AxisType Shared();
  static AxisType Outside();
  static AxisType Uniform(int64_t dims);
  static AxisType Shard(int64_t dim, int64_t length);
  static AxisType Partial(bool mean = false);
  static AxisType Of(TypeKind kind);
};

// One for each mesh axis of more than one rank, in the order of the axes.
using TensorType = c10::SmallVector<AxisType, 2>;

// The type of a tensor with this layout and local shape `shape`. `full_size`: of the sharded dim; -1: unknown, and a
// plain shard then counts as one of equal shards. A negative dim counts from the last.
AxisType TypeOfLayout(const Layout& layout, at::IntArrayRef shape, int64_t full_size, int64_t ranks, int64_t rank);

// Local sizes do not always determine which dim of a view's result is sharded (rules/views.cc). Changes `type`, of a
// tensor of these `sizes`, to the next candidate dim; false if there is none. `sizes_compared`: the sizes of the
// step are compared with those at tp=1, which distinguishes a new dim of size 1 from a row of a shard.
// `terms`: a backward uses the tensor beside a partial one, or in a region. The last candidate is then partial: the
// gradient of a tensor that was expanded along the sharded dim is a sum over that dim, and on shards of length 1 the
// backward runs no operator for this sum.
bool MoveToNextReading(AxisType& type, at::IntArrayRef sizes, bool sizes_compared, bool terms);

}  // namespace moonshard
