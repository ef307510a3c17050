// Exchanges ahead: a block with experts starts to send its tokens before it calls the module that sends them, and
// computes something else while they are on their way, such as a shared expert.
//
// ExchangesAhead has the exchanges of a model that may be started; the outermost CallFrame of each call refers to it.
// StartedExchanges has those that were started inside one CallFrame and are not yet used. The call that uses one may be
// inside of further frames (TakeStarted): modules between the block and its experts have frames of their own.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/plan/plan/plan.h"
#include "engine/runtime/redistribute/token_exchange.h"

namespace moonshard {

class ExchangesAhead {
 public:
  struct Ahead {
    Exchange positions;  // of tokens, ids and weights among the arguments
    TokenExchange exchange;
  };

  // `module`: identifies the module whose calls send tokens, by its Boundary.
  void Add(const void* module, Ahead ahead) { of_module_.insert_or_assign(module, std::move(ahead)); }
  // nullptr: the calls of the module send no tokens, or change them before they send them.
  const Ahead* Of(const void* module) const;

 private:
  std::map<const void*, Ahead> of_module_;  // for look-ups only
};

class StartedExchanges {
 public:
  // Replaces one of the same exchange, which an exception left behind.
  void Add(const TokenExchange& exchange, TokenExchange::Started started);
  // Removes and returns what Add added; nullopt: nothing.
  std::optional<TokenExchange::Started> Take(const TokenExchange& exchange);

 private:
  struct Entry {
    TokenExchange exchange;
    TokenExchange::Started started;
  };
  std::vector<Entry> entries_;
};

// Removes and returns what was started in the innermost frame of this thread that has a start of `exchange`; nullopt:
// no frame has one.
std::optional<TokenExchange::Started> TakeStarted(const TokenExchange& exchange);

}  // namespace moonshard
