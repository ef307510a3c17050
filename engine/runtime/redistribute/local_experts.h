// LocalExperts: a router's choice, limited to the experts of one rank. Every rank routes over all experts alike and
// computes its own experts' terms of the sum; their partial output is reduced by a redistribution (redistribute.h).
// Stage before: apply, which knows the rank's experts.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace moonshard {

struct LocalExperts {
  int64_t first = 0;  // the rank's first expert, among all
  int64_t count = 0;  // experts of the rank

  // Replaces `ids` (integers of any shape, the chosen experts) and `weights` (floating point, of that shape) by new
  // tensors: local ids count from 0, `count` stands for every expert of another rank, and the weight beside it is zero, as
  // is its gradient on this rank. `label` (module path and plan line) is for errors.
  // Throws PlanError: kBadInput where the two have different shapes or ids are not integers.
  void Keep(at::Tensor& ids, at::Tensor& weights, const std::string& label) const;
};

}  // namespace moonshard
