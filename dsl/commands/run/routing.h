// Routing: records the experts that a run chooses for its tokens, so that another run of the same model can compute
// with the same experts. `verify` compares two runs whose sums round differently: if the scores of two experts are
// nearly equal, a token can get different experts in the two runs. From there on the runs compute different values, and
// both are correct.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard {

// One choice: the input of a call of aten::topk, and its result.
struct RoutingChoice {
  std::string after;  // the last module that returned before the call: the router
  at::Tensor scores;  // usually [tokens, experts]
  at::Tensor chosen;  // expert ids, usually [tokens, k]
};

// Records the choices of a forward. Used with an OperatorScope around the step.
class RoutingRecorder final : public OperatorHandler {
 public:
  // `last_module`: returns the path of the module that returned last.
  explicit RoutingRecorder(std::function<std::string()> last_module) : last_module_(std::move(last_module)) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

  std::vector<RoutingChoice> choices;

 private:
  std::function<std::string()> last_module_;
};

// Replaces the expert ids of a forward by those of another run, in call order, and counts the tokens for which this run
// had chosen other experts. The router weights become this run's scores of the replayed experts. A choice whose shape
// differs from the recorded one is not replaced. `choices` must outlive this object.
class RoutingReplay final : public OperatorHandler {
 public:
  explicit RoutingReplay(const std::vector<RoutingChoice>& choices) : choices_(choices) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override;

  int64_t tokens() const { return tokens_; }  // number of compared tokens, summed over all routers
  // Number of these tokens for which this run had chosen other experts.
  int64_t differing() const { return differing_; }
  // Path of the first router with a differing choice; "" if there is none.
  const std::string& first() const { return first_; }

 private:
  const std::vector<RoutingChoice>& choices_;
  std::vector<RoutingChoice> replaced_;  // the replaced choices, with the scores of this run
  size_t next_ = 0;
  int64_t tokens_ = 0;
  int64_t differing_ = 0;
  std::string first_;
};

}  // namespace moonshard
