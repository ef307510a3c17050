// TensorRedistribution: redistributes a local tensor from one layout to another along one mesh axis, with the backward
// that follows from the two layouts. Every supported pair of layouts is one row of this table; any other pair is an
// error. "-": no operation.
//
//   from -> to               forward             backward
//   replicate -> shared      -                   all-reduce
//   shard(d)  -> shared      all-gather          reduce-scatter
//   shard(d)  -> replicate   all-gather          slice
//   partial   -> replicate   all-reduce          -
//   partial   -> shared      all-reduce          all-reduce
//   partial   -> shard(d)    reduce-scatter      all-gather
//   replicate -> shard(d)    slice               all-gather
//   shard(a)  -> shard(b)    all-to-all          all-to-all
//   shared    -> partial     divide by n         divide by n
//
// The backward column follows from the forward column. The gradient of a shared value is partial, the gradient of a
// partial value is replicated, and the gradient of any other value has the layout of the value (GradientLayout). The
// backward redistributes from the gradient layout of `to` to the gradient layout of `from`. replicate -> shared and
// partial -> replicate are the conjugate pair f and g of Megatron-LM (Shoeybi et al. 2019). The rows shard(d) -> shared
// and partial -> shard(d) are Megatron-LM's sequence-parallel pair (Korthikanti et al. 2022).
//
// replicate -> shared_last(n): only the gradient of the last n features is summed. shared -> partial prepares a
// replicated value for the addition to a partial value; without the division, the sum over the ranks would contain the
// replicated value once per rank. If the layouts are equal or the axis has one rank, the redistribution returns the
// tensor itself. A shard may have any form (plain and uneven, heads, heads with replicas, packed); shard_map.h
// describes the gradients of replicas.
// Stage before: collective (AxisGroup). Stage after: apply, which runs redistributions at module boundaries.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/layout/layout.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/intercept/region.h"

namespace moonshard {

struct RedistributionSpec;

// Returns the layout of the gradient of a value with `layout`. Returns shared_last unchanged, because no layout
// describes its gradient, which is partial only in the last features.
Layout GradientLayout(const Layout& layout);

struct RedistributionOptions {
  // The global sizes of the dims that `from` and `to` shard, if the plan determines them (features). -1: the size is
  // known only at run time (a sequence). The sizes of packed parts take precedence.
  int64_t from_size = -1;
  int64_t to_size = -1;
  std::string label;  // for errors: module path and plan line; the same on every rank
  int uses = 0;       // number of siblings that share one result (shared_redistributions.h); 0: unknown
  AxisFactor factor = AxisFactor::kBoth;  // of the axis of two factors whose ranks are those of the group
};

class TensorRedistribution {
 public:
  // Errors: kNoSuchRedistribution (lists all rows), and the errors of DimShards::Make if the sizes are known.
  static Result<TensorRedistribution> Make(const Layout& from, const Layout& to, std::shared_ptr<AxisGroup> group,
                                           RedistributionOptions options = {});

  // Returns the tensor in the new layout. Collective, except for rows without a collective: all ranks of the group call
  // it in the same order. Pass the tensor by std::move if it is not needed afterwards: an all-reduce reuses the memory
  // of a tensor without other references. No backward is recorded while gradients are off, or for an input that needs
  // no gradient. A row whose forward is "-" in the table (replicate -> shared) then returns the tensor itself; with a
  // recorded backward it returns a view, on which in-place operators raise. Differentiating the backward is an error
  // (kNotSupported).
  //
  // The global size of the sharded dim of an input is taken from the first of these sources that has it: the options,
  // the head count, the only size recorded in the current outermost call (CallFrame::OnlySize), an exchange between the
  // ranks. Throws PlanError: kBadDim, kCollectiveMismatch (also if this rank's shard does not have the size that the
  // layout gives it), kRankLost, kNoSuchRedistribution if both dims of shard(a) -> shard(b) turn out to be the same
  // dim.
  at::Tensor operator()(at::Tensor tensor) const;

  // Whether the redistribution always returns the tensor itself.
  bool is_identity() const;
  // Whether both redistributions have the same layouts, sizes and group. Labels are not compared.
  bool SameAs(const TensorRedistribution& other) const;
  int uses() const;
  const std::string& label() const;

 private:
  explicit TensorRedistribution(std::shared_ptr<const RedistributionSpec> spec) : spec_(std::move(spec)) {}
  std::shared_ptr<const RedistributionSpec> spec_;
};

}  // namespace moonshard
