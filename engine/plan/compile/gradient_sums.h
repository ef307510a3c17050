// GradientSums: the gradients, and parts of gradients, that are summed over ranks because each rank computes one term
// of the sum; and the buckets of gradients that ddp sums in one all-reduce. Part of compile. Stage after: apply, which
// passes the sums and the buckets to redistribute/gradient_sum.h; cost.h counts their bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/shards.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// A gradient, or a part of a gradient, that is the sum of one term from each rank of `group`.
struct GradientTerm {
  PlannedGroup group;
  int dim = -1;  // -1: the full gradient
  // The interval of `dim` in this rank's shard, in elements. Only used for a fused weight: the interval covers the
  // parts that have fewer heads than ranks.
  int64_t begin = 0;
  int64_t length = 0;
  bool operator==(const GradientTerm&) const = default;
};

// Returns the terms of a parameter's gradient on rank `rank` of the mesh. `shape` is the parameter's full shape, and
// `placement` is compiled. A `shared` layout has a term over its axis; a layout of fewer heads than ranks has a term
// over the ranks that hold the same head. Empty if the gradient needs no sum. Every rank has the same number of terms,
// with the same groups and lengths. tp adds its terms first, then each other axis on which the layout is a shard, the
// innermost first; last, one term over all other axes on which the layout is `shared`.
std::vector<GradientTerm> GradientTermsOf(const std::vector<int64_t>& shape, const Placement& placement,
                                          const MeshShape& mesh, int64_t rank);

// Returns the interval of sum.dim, in the shard of rank `rank`, that `sum` adds up. `shape` is the parameter's full
// shape.
Interval ElementsOf(const PlannedSum& sum, const std::vector<int64_t>& shape, const Placement& placement,
                    const MeshShape& mesh, int64_t rank);

// Whether gradients are summed over data-parallel ranks, so that every backward of the model takes part in the sums.
bool SumsOverData(const CompiledPlan& plan);

// Whether the group has ranks of a data-parallel axis. The gradients of ddp are summed over it in buckets.
bool SpansData(const PlannedGroup& group);

// Whether gradients may be summed over ranks of any axis.
bool SumsOverRanks(const CompiledPlan& plan);

// Whether the gradient of a parameter is summed in a bucket of ddp: it is shared on every data-parallel axis. An expert
// that ep distributes is not: its gradient is summed over the other axes when the backward ends.
bool IsInBucket(const CompiledPlan& plan, const Placement& placement);

// Returns the buckets of a plan with ddp over several ranks; empty for other plans. A parameter with IsInBucket is in
// one bucket; a tied tensor once, buffers not at all. Parameters are in reverse order of the tree, which is about the
// order in which a backward computes their gradients. All parameters of a bucket have one dtype. A bucket is closed
// before it exceeds the section's bucket_bytes; a larger parameter has a bucket of its own. Sizes are counted for the
// shards of rank 0, so that all ranks have the same buckets. The buckets are in the order in which their all-reduces
// start.
std::vector<GradientBucket> GradientBucketsOf(const CompiledPlan& plan);

}  // namespace moonshard
