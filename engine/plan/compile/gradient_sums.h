// Gradient sums: which parts of a parameter's gradient must be summed, and over which ranks, because each of these
// ranks adds a term of its own; and which parameters' gradients one all-reduce of ddp brings together. Part of compile.
// Stage after: apply, which hands both to redistribute/gradient_sum.h; cost.h prices them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/shards.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct GradientTerm {
  PlannedGroup group;
  int dim = -1;  // -1: the full gradient
  // Of `dim`, within this rank's shard: a part of a fused weight whose heads several ranks hold.
  int64_t begin = 0;
  int64_t length = 0;
  bool operator==(const GradientTerm&) const = default;
};

// Of a parameter of this full shape on `rank` of the mesh: for a `shared` one the axis, for heads that are fewer than
// ranks the ranks that hold the same head. Empty where the gradient needs no sum. Every rank has as many terms of the
// same groups and lengths. Several axes bring a term each, tp's first. The placement has been compiled.
std::vector<GradientTerm> GradientTermsOf(const std::vector<int64_t>& shape, const Placement& placement,
                                          const MeshShape& mesh, int64_t rank);

// Which elements of `dim`, within the shard of `rank`, a planned sum is of, for a parameter of this full shape.
Interval ElementsOf(const PlannedSum& sum, const std::vector<int64_t>& shape, const Placement& placement,
                    const MeshShape& mesh, int64_t rank);

// Whether gradients are summed over data-parallel ranks: every backward of the model takes part.
bool SumsOverData(const CompiledPlan& plan);

// Of a plan with ddp over more than one rank; else none. Every parameter that can have a gradient is in one, tied ones
// once. Parameters come in the reverse order of the tree, which is about the order in which a backward is done with
// them; a bucket is of one dtype and closed before it exceeds the section's bytes, counted as the first rank holds
// them, so that all ranks have the same buckets; a larger parameter has one to itself. The order is that in which they
// are begun.
std::vector<GradientBucket> GradientBucketsOf(const CompiledPlan& plan);

}  // namespace moonshard
