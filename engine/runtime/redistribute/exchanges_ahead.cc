#include "engine/runtime/redistribute/exchanges_ahead.h"

#include <algorithm>
#include <utility>

#include "engine/runtime/redistribute/call_frame.h"

namespace moonshard {

const ExchangesAhead::Ahead* ExchangesAhead::Of(const void* module) const {
  const auto found = of_module_.find(module);
  return found == of_module_.end() ? nullptr : &found->second;
}

void StartedExchanges::Add(const TokenExchange& exchange, TokenExchange::Started started) {
  Take(exchange);
  entries_.push_back({exchange, std::move(started)});
}

std::optional<TokenExchange::Started> StartedExchanges::Take(const TokenExchange& exchange) {
  const auto found =
      std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.exchange.IsSame(exchange); });
  if (found == entries_.end()) return std::nullopt;
  std::optional<TokenExchange::Started> started = std::move(found->started);
  entries_.erase(found);
  return started;
}

std::optional<TokenExchange::Started> TakeStarted(const TokenExchange& exchange) {
  std::optional<TokenExchange::Started> started;
  for (CallFrame* frame = CallFrame::Current(); frame != nullptr && !started; frame = frame->enclosing()) {
    started = frame->started_exchanges().Take(exchange);
  }
  return started;
}

}  // namespace moonshard
