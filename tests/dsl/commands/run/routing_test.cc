// A run with the experts of another run.
#include "dsl/commands/run/routing.h"

#include <catch2/catch.hpp>

#include <vector>

#include <torch/torch.h>

namespace moonshard::test {
namespace {

// The weights of the two best of each row's scores, and their ids.
std::tuple<at::Tensor, at::Tensor> Choose(const at::Tensor& scores) { return at::topk(scores, 2); }

TEST_CASE("a token with nearly equal scores gets the expert of the other run, with its own weight and gradient") {
  const at::Tensor sharded = torch::tensor({{0.1, 0.2, 0.3}, {0.31, 0.3, 0.5}}, at::kDouble);
  const at::Tensor own = torch::tensor({{0.1, 0.2, 0.3}, {0.3, 0.31, 0.5}}, at::kDouble).requires_grad_(true);
  RoutingRecorder recorder([] { return std::string("gate"); });
  {
    const OperatorScope scope(recorder);
    Choose(sharded);
  }
  REQUIRE(recorder.choices.size() == 1);

  RoutingReplay replay(recorder.choices);
  at::Tensor weights;
  at::Tensor ids;
  {
    const OperatorScope scope(replay);
    std::tie(weights, ids) = Choose(own);
    weights.sum().backward();
  }
  CHECK(replay.tokens() == 2);
  CHECK(replay.differing() == 1);
  CHECK(replay.first() == "gate");
  CHECK(ids.equal(torch::tensor({{2, 1}, {2, 0}}, at::kLong)));
  CHECK(weights.detach().equal(torch::tensor({{0.3, 0.2}, {0.5, 0.3}}, at::kDouble)));
  CHECK(own.grad().equal(torch::tensor({{0., 1., 1.}, {1., 0., 1.}}, at::kDouble)));
}

TEST_CASE("the same experts in another order, and choices of another shape, are left as they are") {
  const std::vector<RoutingChoice> choices = {
      {"a", torch::rand({1, 3}), torch::tensor({{1, 2}}, at::kLong)},
      {"b", torch::rand({4, 3}), torch::zeros({4, 2}, at::kLong)},
  };
  RoutingReplay replay(choices);
  const OperatorScope scope(replay);
  for (int call = 0; call < 3; ++call) {
    CHECK(std::get<1>(Choose(torch::tensor({{0.1, 0.2, 0.3}}))).equal(torch::tensor({{2, 1}}, at::kLong)));
  }
  CHECK(replay.tokens() == 1);
  CHECK(replay.differing() == 0);
}

}  // namespace
}  // namespace moonshard::test
