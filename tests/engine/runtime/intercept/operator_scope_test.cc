// Which operators a scope's handler sees, and what it can do to them.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>

#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard::test {
namespace {

class Seen final : public OperatorHandler {
 public:
  void Handle(const c10::OperatorHandle& op, c10::Stack& /*stack*/, Next& next) override {
    names.push_back(op.schema().name());
    next.Run();
  }
  bool Has(const std::string& name) const { return std::find(names.begin(), names.end(), name) != names.end(); }
  std::vector<std::string> names;
};

// Doubles the results of one operator.
class Doubler final : public OperatorHandler {
 public:
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override {
    next.Run();
    if (op.schema().name() == "aten::tanh") stack.back() = stack.back().toTensor() * 2;
  }
};

TEST_CASE("a handler sees operators of forward and backward, composites taken apart") {
  const at::Tensor x = torch::ones({2, 3, 4}).requires_grad_();
  const at::Tensor w = torch::ones({5, 4}).requires_grad_();
  Seen seen;
  at::Tensor y;
  {
    const OperatorScope scope(seen);
    y = at::tanh(at::linear(x, w));
    CHECK(OperatorScope::Current() == &seen);
  }
  CHECK(OperatorScope::Current() == nullptr);
  CHECK(seen.Has("aten::mm"));
  CHECK(seen.Has("aten::tanh"));
  CHECK_FALSE(seen.Has("aten::linear"));
  CHECK_FALSE(seen.Has("aten::tanh_backward"));
  const size_t forward = seen.names.size();
  at::tanh(x);
  CHECK(seen.names.size() == forward);  // nothing outside of the scope
  {
    const OperatorScope scope(seen);
    y.sum().backward();
  }
  CHECK(seen.Has("aten::tanh_backward"));
  CHECK(w.grad().defined());
}

TEST_CASE("scopes nest, and a handler changes results for the one around it") {
  const at::Tensor x = torch::full({3}, 0.5);
  Seen seen;
  Doubler doubler;
  {
    const OperatorScope outer(seen);
    const OperatorScope inner(doubler);
    CHECK(at::equal(at::tanh(x), at::tanh(torch::full({3}, 0.5)) * 1));
  }
  // What the handler itself runs (the product) is not handled.
  CHECK(std::count(seen.names.begin(), seen.names.end(), "aten::tanh") == 2);
  at::Tensor doubled;
  {
    const OperatorScope scope(doubler);
    doubled = at::tanh(x);
  }
  CHECK(at::equal(doubled, at::tanh(x) * 2));
}

TEST_CASE("an exception of an operator leaves the scope usable, and other threads see nothing of it") {
  Seen seen;
  const OperatorScope scope(seen);
  CHECK_THROWS(at::mm(torch::ones({2, 3}), torch::ones({2, 3})));
  const size_t before = seen.names.size();
  std::thread([] { at::tanh(torch::ones({2})); }).join();
  CHECK(seen.names.size() == before);
  at::tanh(torch::ones({2}));
  CHECK(seen.Has("aten::tanh"));
}

}  // namespace
}  // namespace moonshard::test
