// TokenExchange: sends tokens to the ranks that have their experts, and the results back, around one call of the
// experts of a layer (Lepikhin et al. 2020, arXiv:2006.16668). Ranks first exchange how many tokens each expert gets,
// then the tokens, by an all-to-all of uneven splits. No token is dropped unless the plan sets a capacity.
//
//   tokens [N, H], ids [N, k], weights [N, k]    of this rank
//   Send      one row for each token and expert, sorted by expert -> rows [R, H] of this rank's experts
//   Return    results [R, H] -> one row for each token and expert, times its weight, summed over the k experts: [N, H]
//
// The weights stay on the rank of their token, so that the router's gradient is exact and local, and are never sent.
// Backward sends the gradients of the results to the experts and those of the rows back to the tokens. Both collectives
// of the backward run on every rank, also on a rank whose experts received no token or used none.
// Stage before: collective (AxisGroup). Stage after: apply, which runs both around the call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "engine/plan/plan/plan.h"
#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

class TokenExchange {
 public:
  struct Splits {
    std::vector<int64_t> send;     // rows of this rank's tokens for each rank of the group
    std::vector<int64_t> receive;  // rows from each rank
  };
  // The tokens that one call sent. Return ends it.
  struct Sent {
    Splits splits;
    at::Tensor order;                   // [sent rows]: row -> position in the flattened ids; [N * k] if none is dropped
    at::Tensor weights;                 // [N, k]
    at::ScalarType dtype = at::kFloat;  // of the tokens
    at::Tensor load;  // int64 [experts of a rank], on the CPU: rows that each expert of this rank received
    std::shared_ptr<torch::autograd::Node> node;  // of Send; null: without gradients
  };

  // `group`: of ep. `experts`: number of experts over all ranks; rank r has the r-th block of ceil(experts / ranks)
  // experts. `path`: of the module, for errors and as the label of the collectives.
  TokenExchange(std::shared_ptr<AxisGroup> group, const Exchange& exchange, int64_t experts, const std::string& path);

  // Replaces `tokens`, `ids` and `weights` by what the experts of this rank receive: rows [R, H] by rank and expert,
  // ids [R, 1] of their experts (among those of the rank, or among all: Exchange::listed) and weights [R, 1] of 1.
  // Collective. Throws PlanError kBadInput on every rank of the group if the arguments of one of them do not fit: other
  // shapes than declared, ids that are no integers or no expert.
  Sent Send(at::Tensor& tokens, at::Tensor& ids, at::Tensor& weights) const;
  // Returns the results [N, H] of the tokens, in the dtype of `results` [R, H], which is the same on every rank. For no
  // rows `results` may also be undefined or have another shape without elements; the results of the other ranks must
  // then have the dtype of the tokens. Collective. Throws PlanError kBadInput
  // after the exchange, on this rank alone, if `results` is undefined or has another shape.
  at::Tensor Return(const Sent& sent, const at::Tensor& results) const;

  struct Spec;

 private:
  std::shared_ptr<const Spec> spec_;
};

}  // namespace moonshard
