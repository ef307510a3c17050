// AxisType: what is known of one tensor along one mesh axis while a step runs. Wider than the Layout that a plan declares
// (plan/layout.h), because operators make more than modules pass on:
//
//   replicate   the same on every rank, and used the same everywhere: its gradient is the same everywhere too
//   shared      the same on every rank, used by sharded compute: its gradient is partial
//   shard(d)    shards along dim d; `shard(0) after 4`: dim 0 is [4, shard, ...] flattened, as [b, s/n, h] viewed as
//               [b s/n, h]; `packed`: several shards one after the other, as a fused projection makes
//   partial     terms of a sum; `partial mean`: terms of a mean
//   own rows    right where this rank holds the row that an id names, arbitrary elsewhere: to be masked (NoteOwnRows)
//   varying     different on every rank, in a way that no layout describes
//   unproven    an operator without a rule made it
//   faulty      made by an operator that was refused: what follows from it is not reported again
//
// The words say along which dim; `map` says which indices, in which order, on every rank. Rules compare maps where tensors
// meet, so that a packed shard is no plain one and the second head no first. A backward repeats the forward's places, which
// were compared; there a map that got lost is passed over.
//
// Without a gradient, replicate and shared are one. A replicate is `uniform` along a dim where all its elements are equal
// along it (zeros, an expanded dim): it can stand for any shard of itself.
//
// Along a data-parallel axis a tensor from outside of the step is `outside`, a replicate of which it is not known whether it
// is a rank's own rows of the batch or a constant: both are right there, since no plan shards it. It may meet shards of the
// batch, what follows from it alone is outside too, and its gradients count as terms.
// Stage before: layout words, from parameters and boundaries. Stage after: rules, which compute with them.
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
  bool full = false;    // of replicate: used the same everywhere
  bool shared = false;  // of replicate: used by sharded compute. Neither: it has no gradient, or had none yet
  bool mean = false;    // of partial
  // Of replicate: shared in the last features of the last dim, so many, and full in those before; of partial: terms in
  // those alone, and the same everywhere before them. 0: neither.
  int64_t last = 0;
  int64_t zeros_behind = 0;  // of replicate: so many of the last dim's last features are zeros, as a slice's gradient
  int dim = 0;               // of a shard, counted from 0
  int64_t lead = 1;    // of a shard: how many full elements the dim holds in front of the shard, flattened into it
  int64_t length = 0;  // of a shard: how much of the dim is the shard; the rest of the dim is behind it, unsharded
  int64_t inner = 1;   // of a shard: into how many the elements of the shard were opened behind it, as heads are
  int behind = -1;     // of a shard: the dim into which they were opened; -1: not known any more
  std::vector<int64_t> parts;  // of a shard: the shard is these shards, one after the other; empty: one
  // Of a shard: which indices of the full dim `dim` each rank holds; null: not known, as in most gradients. Of a replicate
  // that was made as long as a shard (zeros_like): that shard's, along its `dim`.
  IndexMapPtr map;
  bool of_gradient = false;  // of a shard without a map: it follows from a gradient, whose places the forward has
  // Of a shard: bit d where dim d is an expanded one, all of whose elements are one.
  uint64_t copies = 0;
  // Of a shard: the ranks' shards are known to differ in length, as 7 rows on two ranks, which are 4 and 3.
  bool uneven = false;
  // Of a shard that was one of several in a fused dim: the parts of that.
  std::shared_ptr<const std::vector<int64_t>> fused;
  uint64_t uniform = 0;                      // of replicate: bit d where the value is the same along dim d
  bool zero = false;                         // of replicate: nothing but zeros, which are terms of any sum too
  bool outside = false;                      // of replicate: a data-parallel rank's own, or a constant
  bool floating = false;                     // of a shard of one element that a view joined with others: see views.cc
  bool by_value = false;                     // the tensor's sizes may follow values (nonzero): they are no layout's
  int64_t heads = 0;                         // of a shard: how many heads all ranks have; 0: it is not made of heads
  int64_t head = 0;                          // of a shard made of heads: how many of its elements are a head
  std::shared_ptr<const std::string> since;  // which operator made it partial or varying, for messages

  bool is(TypeKind other) const { return kind == other; }
  bool is_shard() const { return kind == TypeKind::kShard; }
  bool is_partial() const { return kind == TypeKind::kPartial; }
  bool is_replicate() const { return kind == TypeKind::kReplicate; }
  // A shard of one head, which every rank has: also what `shared` is.
  bool is_whole() const { return is_shard() && map != nullptr && map->whole(); }
  bool is_mixed() const { return last > 0; }
  bool is_known() const { return kind != TypeKind::kUnproven && kind != TypeKind::kFaulty; }
  bool uniform_along(int64_t d) const { return ((uniform >> d) & 1) != 0; }
  // Whether both place the elements alike; parts are not compared, since a gradient has lost them.
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

// One for each axis of the mesh that has more than one rank, in their order.
using TensorType = c10::SmallVector<AxisType, 2>;

// The type of a tensor with this layout whose local shape (of this rank's shard, where it is sharded) is `shape`;
// `full_size`: of the sharded dim, -1: not known; a plain shard counts as one of equal shards then. A negative dim counts
// from the tensor's last.
AxisType TypeOfLayout(const Layout& layout, at::IntArrayRef shape, int64_t full_size, int64_t ranks, int64_t rank);

// Local sizes do not always tell into which dim a view has put a shard (rules/views.cc): the shard of a tensor of these
// `sizes` goes on to the next dim that it may be in. False: there is none. `sizes_compared`: the step's sizes are held
// against those at tp=1, where a new dim of size 1 and a row of a shard are told apart.
// Where a gradient meets `terms` of a sum, the last reading is that the shard is terms too: what is as long as one element of a
// shard, because it was replicated along a dim of size 1, needs no sum of its own along that dim.
bool MoveToNextReading(AxisType& type, at::IntArrayRef sizes, bool sizes_compared, bool terms);

}  // namespace moonshard
