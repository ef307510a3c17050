// ExchangeStep: the boundary step that sends the tokens of a call to the ranks of their experts, and the results back;
// and StartExchange, with which the enclosing block starts the sending before the call.
// Stage before: redistribute (TokenExchange).
#pragma once

#include <memory>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/plan/plan/plan.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/redistribute/expert_loads.h"
#include "engine/runtime/redistribute/token_exchange.h"

namespace moonshard {

// Starts to send the tokens of the coming call of `experts`, whose arguments are `arguments`, by position. What the
// caller computes until that call overlaps with the sending; the call waits for the rows. The same holds for the
// gradients of the rows in the backward. Call it in the forward of the module that encloses `experts`, on every rank
// alike, with the tensors that the call gets, and do not write into them before it:
//
//   StartExchange(*experts, {tokens, ids, weights});
//   const at::Tensor shared = shared_expert(tokens);
//   return experts(tokens, ids, weights) + shared;
//
// Modules may lie between the two calls, if they pass the tensors on as they are.
//
// Does nothing if the call sends no tokens (no plan, or a plan without an exchange over several ranks); if steps of the
// plan change the arguments before they are sent, or the call is recomputed by itself: the call then sends them; and
// outside of a call of the model. The collectives and their counts are the same with and without it. Throws what
// TokenExchange::Start throws.
void StartExchange(const Hookable& experts, at::TensorList arguments);

class ExchangeStep final : public BoundaryStep {
 public:
  // `path`: of the module. `loads`: gets the rows of each call that a backward does not repeat.
  ExchangeStep(const Exchange& exchange, TokenExchange tokens, std::string path, std::shared_ptr<ExpertLoads> loads);

  const Exchange& exchange() const { return exchange_; }
  const TokenExchange& tokens() const { return tokens_; }

  // Throws PlanError kBadInput if an argument is missing, or if StartExchange was called with other arguments.
  std::unique_ptr<State> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(State* state, std::span<const TensorSlot> results) override;

 private:
  struct Out;

  Exchange exchange_;
  TokenExchange tokens_;
  std::string path_;
  std::shared_ptr<ExpertLoads> loads_;
};

// The error of a call of the module at `path` without an argument: `what`.
Diagnostic MissingArgument(const std::string& path, const std::string& what, std::string required);

}  // namespace moonshard
