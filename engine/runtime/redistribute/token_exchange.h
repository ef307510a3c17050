// TokenExchange: sends tokens to the ranks that have their experts, and the results back, around one call of the
// experts of a layer (Lepikhin et al. 2020, arXiv:2006.16668). Ranks first exchange how many tokens each expert gets,
// then the tokens, by an all-to-all of uneven splits. No token is dropped unless the plan sets a capacity.
//
//   tokens [N, H], ids [N, k], weights [N, k]    of this rank
//   Start     exchanges the counts and starts to send one row for each token and expert, sorted by expert
//   Wait      -> rows [R, H] of this rank's experts
//   Return    results [R, H] -> one row for each token and expert, times its weight, summed over the k experts: [N, H]
//
// What a rank computes between Start and Wait overlaps with the exchange, and so does its backward: there the gradients
// of the rows start on their way back when the backward of Wait runs, and the backward of Start waits for them.
//
// The weights stay on the rank of their token, so that the router's gradient is exact and local, and are never sent.
// Backward sends the gradients of the results to the experts and those of the rows back to the tokens. Both collectives
// of the backward run on every rank, also on a rank whose experts received no token or used none.
// Stage before: collective (AxisGroup). Stage after: apply, which runs these functions around the call.
#pragma once

#include <array>
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
  // The tokens that one call sent. Return uses it.
  struct Sent {
    Splits splits;
    at::Tensor order;                   // [sent rows]: row -> position in the flattened ids; [N * k] if none is dropped
    at::Tensor weights;                 // [N, k]
    at::ScalarType dtype = at::kFloat;  // of the tokens
    at::Tensor load;  // int64 [experts of a rank], on the CPU: rows that each expert of this rank received
    std::shared_ptr<torch::autograd::Node> node;  // of Wait; null: without gradients
  };
  // The tokens that are on their way. Wait ends it. Destroyed before, the rows are sent all the same, and the received
  // rows are dropped.
  struct Started {
    Sent sent;
    at::Tensor source;       // [sent rows]: row -> token
    at::Tensor experts;      // [R, 1]: ids of the experts of the received rows
    PendingCollective rows;  // [R, H]
    uint64_t sequence = 0;   // number of the autograd node of Start
    at::Tensor tokens;       // the arguments
    at::Tensor ids;
    at::Tensor weights;
    std::array<int64_t, 2> versions = {};  // of tokens and ids, which were read: a later write changes the version
  };

  // `group`: of ep. `experts`: number of experts over all ranks; rank r has the r-th block of ceil(experts / ranks)
  // experts. `path`: of the module, for errors and as the label of the collectives.
  TokenExchange(std::shared_ptr<AxisGroup> group, const Exchange& exchange, int64_t experts, const std::string& path);

  // Starts to send the tokens. Collective; waits for the counts of the other ranks, not for their rows. Throws
  // PlanError kBadInput on every rank of the group if the arguments of one of them do not fit: other shapes than
  // declared, ids that are no integers or no expert.
  Started Start(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights) const;
  // Waits for the rows, and replaces `tokens`, `ids` and `weights`, the arguments of Start, by what the experts of this
  // rank receive: rows [R, H] by rank and expert, ids [R, 1] of their experts (among those of the rank, or among all:
  // Exchange::listed) and weights [R, 1] of 1. Whether a backward goes through the exchange depends on the grad mode
  // here.
  Sent Wait(Started started, at::Tensor& tokens, at::Tensor& ids, at::Tensor& weights) const;
  // Start and Wait.
  Sent Send(at::Tensor& tokens, at::Tensor& ids, at::Tensor& weights) const;
  // Returns the results [N, H] of the tokens, in the dtype of `results` [R, H], which is the same on every rank. For no
  // rows `results` may also be undefined or have another shape without elements; the results of the other ranks must
  // then have the dtype of the tokens. Collective. Throws PlanError kBadInput
  // after the exchange, on this rank alone, if `results` is undefined or has another shape.
  at::Tensor Return(const Sent& sent, const at::Tensor& results) const;

  // Whether `other` is a copy of this object.
  bool IsSame(const TokenExchange& other) const { return spec_ == other.spec_; }

  struct Spec;

 private:
  std::shared_ptr<const Spec> spec_;
};

}  // namespace moonshard
