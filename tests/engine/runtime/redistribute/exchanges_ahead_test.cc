// The exchanges that were started inside a frame: one of each, the newest.
#include <catch2/catch.hpp>

#include <memory>
#include <optional>

#include <ATen/ATen.h>

#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/exchanges_ahead.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::RunRanks;

TEST_CASE("a started exchange is taken once, and the newest of each exchange") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const Exchange keys = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 4};
    const TokenExchange first(group, keys, 2, "first");
    const TokenExchange second(group, keys, 2, "second");
    const at::Tensor tokens = at::ones({2, 4});
    const at::Tensor newer = at::full({2, 4}, 2.0);
    const at::Tensor ids = at::arange(2).view({2, 1});
    const at::Tensor weights = at::ones({2, 1});
    const auto start = [&](const TokenExchange& exchange, const at::Tensor& of) {
      CallFrame::Current()->started_exchanges().Add(exchange, exchange.Start(of, ids, weights));
    };
    const auto take = [](const TokenExchange& exchange) {
      return CallFrame::Current()->started_exchanges().Take(exchange);
    };
    const CallFrame frame;
    start(first, tokens);
    start(second, tokens);
    start(first, newer);
    std::optional<TokenExchange::Started> taken;
    {
      const CallFrame inner;
      Expect(!take(first), "another frame has none");
      taken = TakeStarted(first);
      Expect(!TakeStarted(first), "taken once");
    }
    Expect(taken && taken->tokens.is_same(newer), "the newest, of the frame that encloses");
    Expect(!take(first) && !TakeStarted(first), "taken once");
    {
      const CallFrame inner;
      start(second, newer);
      Expect(TakeStarted(second)->tokens.is_same(newer), "that of the innermost frame first");
    }
    Expect(take(second).has_value(), "the other exchange");
  });
}

TEST_CASE("the frames inside of a frame have its exchanges") {
  const auto exchanges = std::make_shared<ExchangesAhead>();
  CallFrame outer;
  CHECK(outer.exchanges() == nullptr);
  outer.SetExchanges(exchanges);
  const CallFrame inner;
  CHECK(inner.exchanges() == exchanges.get());
  CHECK(exchanges->Of(&outer) == nullptr);
}

}  // namespace
}  // namespace moonshard
