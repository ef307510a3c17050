// Gradient buckets: which parameters' gradients one all-reduce of ddp brings together. apply/ hands them to
// layout/gradient_sum.h, which begins a bucket when the backward has made all of it; cost.h counts them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

struct GradientBucket {
  std::vector<ParamRef> params;
  // Members are summed over ranks of tp too, which is done when the backward ends, and before this.
  bool after_tp = false;
  DType dtype = DType::kF32;
};

// Of a plan with ddp over more than one rank; else none. Every parameter that can have a gradient is in one, tied ones
// once. Parameters come in the reverse order of the tree, which is about the order in which a backward is done with them;
// a bucket is of one dtype and closed before it exceeds the section's bytes, counted as the first rank holds them, so that
// all ranks have the same buckets; a larger parameter has one to itself. The order is that in which they are begun.
std::vector<GradientBucket> GradientBucketsOf(const CompiledPlan& plan);

}  // namespace moonshard
