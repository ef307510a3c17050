// The call's state has what brings the results back. What StartExchange began is in the frame of an enclosing call,
// where Enter looks for it: a step is shared by all calls of its module, and a frame belongs to one call on one thread.
// Both run the same program on every rank, so every rank finds a started exchange or none does.
#include "engine/runtime/apply/exchange_step.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <torch/csrc/autograd/graph_task.h>

#include "engine/core/base/result.h"
#include "engine/core/base/text.h"
#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/exchanges_ahead.h"

namespace moonshard {
namespace {

// Positions among the arguments, in the order of TokenExchange's functions.
std::array<size_t, 3> PositionsOf(const Exchange& exchange) {
  return {static_cast<size_t>(exchange.tokens), static_cast<size_t>(exchange.ids),
          static_cast<size_t>(exchange.weights)};
}

// Whether both are the same values in the same memory: an observer may have replaced an argument by an alias of it.
bool IsSameTensor(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.is_alias_of(b) && a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
                          a.strides() == b.strides() && a.storage_offset() == b.storage_offset());
}

Diagnostic OtherArguments(const std::string& path) {
  Diagnostic d =
      MakeDiagnostic(Finding::kBadInput, ModuleName(path) + " was called with other tensors than StartExchange");
  d.path = path;
  d.required =
      "the call gets the tensors with which its exchange was started; if a module between the two calls changes them "
      "(a "
      "redistribution, a cast, recompute), StartExchange in the forward of this module";
  return d;
}

}  // namespace

Diagnostic MissingArgument(const std::string& path, const std::string& what, std::string required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, ModuleName(path) + " was called without " + what);
  d.path = path;
  d.required = std::move(required);
  return d;
}

void StartExchange(const Hookable& experts, at::TensorList arguments) {
  CallFrame* const frame = CallFrame::Current();
  if (frame == nullptr || frame->exchanges() == nullptr) return;
  const ExchangesAhead::Ahead* const ahead = frame->exchanges()->Of(experts.boundary());
  if (ahead == nullptr) return;
  const std::array<size_t, 3> positions = PositionsOf(ahead->positions);
  const bool absent =
      std::ranges::any_of(positions, [&](size_t p) { return p >= arguments.size() || !arguments[p].defined(); });
  if (absent) return;  // the call reports it
  frame->started_exchanges().Add(
      ahead->exchange,
      ahead->exchange.Start(arguments[positions[0]], arguments[positions[1]], arguments[positions[2]]));
}

struct ExchangeStep::Out final : State {
  explicit Out(TokenExchange::Sent sent) : sent(std::move(sent)) {}
  TokenExchange::Sent sent;
};

ExchangeStep::ExchangeStep(const Exchange& exchange, TokenExchange tokens, std::string path,
                           std::shared_ptr<ExpertLoads> loads)
    : exchange_(exchange), tokens_(std::move(tokens)), path_(std::move(path)), loads_(std::move(loads)) {}

std::unique_ptr<BoundaryStep::State> ExchangeStep::Enter(std::span<const TensorSlot> arguments) {
  const std::array<size_t, 3> positions = PositionsOf(exchange_);
  std::array<at::Tensor*, 3> found = {};
  for (const TensorSlot& slot : arguments) {
    for (size_t i = 0; i < found.size(); ++i) {
      if (slot.position == positions[i] && slot.tensor->defined()) found[i] = slot.tensor;
    }
  }
  if (std::ranges::find(found, nullptr) != found.end()) {
    throw PlanError({MissingArgument(path_, "tokens, the ids of their experts or the routing weights",
                                     "exchange: tensors at the declared positions (the first is 0)")});
  }
  auto& [tokens, ids, weights] = found;
  std::optional<TokenExchange::Started> started = TakeStarted(tokens_);
  if (!started) {
    started = tokens_.Start(*tokens, *ids, *weights);
  } else if (!IsSameTensor(started->tokens, *tokens) || !IsSameTensor(started->ids, *ids) ||
             !IsSameTensor(started->weights, *weights)) {
    throw PlanError({OtherArguments(path_)});
  }
  auto out = std::make_unique<Out>(tokens_.Wait(*std::move(started), *tokens, *ids, *weights));
  // A call that a backward repeats sends the same tokens again.
  if (torch::autograd::get_current_graph_task_id() == -1) {
    loads_->Add(path_, out->sent.load, out->sent.weights.numel() - out->sent.order.numel());
  }
  return out;
}

void ExchangeStep::Leave(State* state, std::span<const TensorSlot> results) {
  const TokenExchange::Sent& sent = static_cast<const Out*>(state)->sent;
  for (const TensorSlot& slot : results) {
    if (slot.position != 0) continue;
    *slot.tensor = tokens_.Return(sent, *slot.tensor);
    return;
  }
  tokens_.Return(sent, at::Tensor());  // the other ranks wait for the results of this one
}

}  // namespace moonshard
