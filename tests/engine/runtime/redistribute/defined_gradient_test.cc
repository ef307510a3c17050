// DefinedGradient, with a node that records what it received.
#include <catch2/catch.hpp>

#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/result.h"
#include "engine/runtime/redistribute/defined_gradient.h"

namespace moonshard {
namespace {

struct GradientNode final : torch::autograd::Node {
  explicit GradientNode(torch::autograd::edge_list&& edges) : Node(std::move(edges)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    given = gradients[0];
    used = DefinedGradient(std::move(gradients[0]), *this, "a collective", "layer.proj");
    return {used};
  }
  at::Tensor given;
  at::Tensor used;
};

struct Graph {
  Graph() {
    node = std::make_shared<GradientNode>(torch::autograd::edge_list{torch::autograd::impl::gradient_edge(leaf)});
    output = leaf.detach().clone();
    torch::autograd::create_gradient_edge(output, node);
  }
  at::Tensor leaf = at::ones({2, 3}, at::kDouble).set_requires_grad(true);
  std::shared_ptr<GradientNode> node;
  at::Tensor output;
};

TEST_CASE("a defined gradient is used as it is") {
  const Graph graph;
  (graph.output * 3).sum().backward();
  CHECK(graph.node->used.is_same(graph.node->given));
  CHECK(at::equal(graph.leaf.grad(), at::full({2, 3}, 3, at::kDouble)));
}

TEST_CASE("an undefined gradient becomes zeros of the output's shape and dtype") {
  const Graph graph;
  const torch::autograd::variable_list made = graph.node->apply({at::Tensor()});
  CHECK(!graph.node->given.defined());
  CHECK(made[0].scalar_type() == at::kDouble);
  CHECK(at::equal(made[0], at::zeros({2, 3}, at::kDouble)));
}

TEST_CASE("a gradient that is differentiated again is an error that names the module") {
  const Graph graph;
  const auto twice = [&] {
    torch::autograd::grad({graph.output.square().sum()}, {graph.leaf}, {}, true, /*create_graph=*/true);
  };
  CHECK_THROWS_WITH(twice(), Catch::Contains("a collective cannot be differentiated twice") &&
                                 Catch::Contains("at: layer.proj") &&
                                 Catch::Contains("declared: backward with create_graph"));
}

}  // namespace
}  // namespace moonshard
