// TensorMove: carries a local tensor from one layout to another along one mesh axis, with the backward that the layouts
// fix. Every pair is one row of this table; a pair without a row is an error. (A layout's gradient has the dual layout:
// plan/layout.h. Peers: the conjugate pairs f and g of Megatron-LM, Shoeybi et al. 2019; spmd_types.)
//
//   from -> to               forward          backward
//   replicate -> shared      -                all-reduce
//   shard(d)  -> shared      all-gather       reduce-scatter
//   shard(d)  -> replicate   all-gather       take own shard
//   partial   -> replicate   all-reduce       -
//   partial   -> shared      all-reduce       all-reduce
//   partial   -> shard(d)    reduce-scatter   all-gather
//   replicate -> shard(d)    take own shard   all-gather
//   shard(a)  -> shard(b)    all-to-all       all-to-all
//   shared    -> partial     each its share   each its share
//
// Where only the last features are shared (shared_last), only their gradient is summed. A share is 1/n of the value: for
// what is added to terms of a sum and would count once a rank.
// Equal layouts, and any row on an axis of one rank, return the tensor itself. A shard may be of any form (plain and
// uneven, heads, heads with replicas, packed); where shards are replicated, piece_map.h says who holds the gradient.
// Stage before: collective (AxisGroup). Stage after: apply, which runs moves at module boundaries.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/layout/layout.h"
#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

struct RedistributionSpec;

// What the gradient of a value of this layout is: its dual (plan/layout.h). Of shared_last, whose gradient has no word,
// itself.
Layout GradientLayout(const Layout& layout);

struct RedistributionOptions {
  // Global sizes of the dims that `from` and `to` shard, where they are always the same (features); -1: only known at
  // run time (a sequence). The sizes of packed parts win.
  int64_t from_size = -1;
  int64_t to_size = -1;
  std::string label;  // for errors: module path and plan line; the same on every rank
  int uses = 0;       // how many siblings ask for this move of one tensor (shared_moves.h); 0: not known
};

class TensorRedistribution {
 public:
  // Errors: kNoSuchMove (the rows there are are named), and those of DimPieces where the sizes are known.
  static Result<TensorRedistribution> Make(const Layout& from, const Layout& to, std::shared_ptr<AxisGroup> group,
                                           RedistributionOptions options = {});

  // The tensor in the new layout. All ranks of the group call it in the same order. Move the tensor in where it is not
  // needed any more: the sole reference lets an all-reduce reuse its memory. With gradients off or on an input that
  // needs none no backward is recorded; an identity row then returns the tensor itself, else a view on which in-place
  // operators raise. Differentiating its backward again is an error (kNotSupported).
  //
  // Where `from` is a shard whose size is not known, it is the one size noted in the current outermost call
  // (CallFrame::OnlySize); failing that the ranks exchange the sizes of their shards.
  // Throws PlanError: kBadDim, kCollectiveMismatch (also: this rank's shard is not its part of the whole), kRankLost,
  // kNoSuchMove where both dims turn out to be one dim cut in two ways.
  at::Tensor operator()(at::Tensor tensor) const;

  // Whether it always returns the tensor itself.
  bool is_identity() const;
  // Whether the two do the same, labels apart.
  bool SameAs(const TensorRedistribution& other) const;
  int uses() const;
  const std::string& label() const;

 private:
  explicit TensorRedistribution(std::shared_ptr<const RedistributionSpec> spec) : spec_(std::move(spec)) {}
  std::shared_ptr<const RedistributionSpec> spec_;
};

}  // namespace moonshard
