// LocalExperts: restricts the ids and weights of a router to the experts of one rank. Every rank routes over all
// experts and computes only its own experts; a redistribution reduces their partial output (redistribute.h).
// Stage before: apply, which determines the rank's experts.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace moonshard {

struct LocalExperts {
  int64_t first = 0;  // the rank's first expert, as an index among all experts
  int64_t count = 0;  // number of the rank's experts

  // Replaces `ids` (the chosen experts, integers of any shape) and `weights` (floating-point, of the same shape) by new
  // tensors. Local ids count from 0. An expert of another rank gets the id `count` and the weight zero; on this rank,
  // the gradient of that weight is zero too. `label`: module path and plan line, for errors. Throws PlanError kBadInput
  // if the shapes differ or the ids are not integers.
  void Keep(at::Tensor& ids, at::Tensor& weights, const std::string& label) const;
};

}  // namespace moonshard
