// Routing: the experts that a run chose for its tokens, so that another run of the same model can compute with the same
// ones. `verify` compares two runs whose sums round differently: where the scores of two experts are nearly equal a
// token gets another expert, and from there on the two runs compute different things, of which neither is wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {

// One choice: what aten::topk was called with, and what it returned.
struct RoutingChoice {
  std::string after;  // the module whose output came last before it: the router
  at::Tensor scores;  // usually [tokens, experts]
  at::Tensor chosen;  // expert ids, usually [tokens, k]
};

// Records the choices of a forward. For an OperatorScope around the step.
class RoutingRecorder final : public OperatorHandler {
 public:
  // `last_module`: the path of the module whose output came last.
  explicit RoutingRecorder(std::function<std::string()> last_module) : last_module_(std::move(last_module)) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

  std::vector<RoutingChoice> choices;

 private:
  std::function<std::string()> last_module_;
};

// Replaces the expert ids of a forward by those of another run, in call order, and counts the tokens for which this run
// had chosen other experts. The router weights are this run's scores of the replayed experts. A choice whose shape
// differs from the recorded one is not replaced. `choices` must outlive it.
class RoutingReplay final : public OperatorHandler {
 public:
  explicit RoutingReplay(const std::vector<RoutingChoice>& choices) : choices_(choices) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

  int64_t tokens() const { return tokens_; }        // compared: tokens, summed over all routers
  int64_t differing() const { return differing_; }  // of them, with other experts
  // Path of the first router with a differing choice; "" if there is none.
  const std::string& first() const { return first_; }

 private:
  const std::vector<RoutingChoice>& choices_;
  std::vector<RoutingChoice> replaced_;  // with the scores of this run
  size_t next_ = 0;
  int64_t tokens_ = 0;
  int64_t differing_ = 0;
  std::string first_;
};

}  // namespace moonshard
