// LocalExperts: a router's choice as the experts of one rank see it. Every rank chooses among all experts alike; each
// computes what its own add to the sum.
// Stage before: apply, which knows the rank's experts. Stage after: layout/move.h, which sums what they made.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace moonshard {

struct LocalExperts {
  int64_t first = 0;  // of the rank's own, among all
  int64_t count = 0;  // of its own

  // ids: integers of any shape, the chosen experts; weights: floating point of that shape. Ids of the rank's own experts
  // are counted from 0 after it; `count` stands for every other, and the weight beside it is zero, as is that weight's
  // gradient here. Both are new tensors. `label` (module path and plan line) is for errors.
  // Throws PlanError: kBadInput where the two are not of one shape or ids are not integers.
  void Keep(at::Tensor& ids, at::Tensor& weights, const std::string& label) const;
};

}  // namespace moonshard
