// LocalExperts: restricts the ids and weights of a router to the experts of one rank. Every rank routes over all
// experts and computes its own experts; their partial output is reduced by a redistribution (redistribute.h).
// Stage before: apply, which determines the rank's experts.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace moonshard {

struct LocalExperts {
  int64_t first = 0;  // the rank's first expert, among all
  int64_t count = 0;  // experts of the rank

  // Replaces `ids` (integers of any shape, the chosen experts) and `weights` (floating point, of that shape) by new
  // tensors: local ids count from 0; an expert of another rank has the id `count`, and its weight is zero, as is the
  // gradient of that weight on this rank. `label` (module path and plan line) is for errors.
  // Throws PlanError: kBadInput if the two have different shapes or ids are not integers.
  void Keep(at::Tensor& ids, at::Tensor& weights, const std::string& label) const;
};

}  // namespace moonshard
