// One module under a plan against itself without one, on thread ranks: outputs, input gradients and parameter gradients
// of two backwards, so that gradients accumulate. For exact tests: integers in float64, whose sums are exact in any
// order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/layout/layout.h"

namespace moonshard::test {

using Tensors = std::vector<at::Tensor>;

// A model under test: `m` is the module that the plan speaks of.
struct OneModule {
  std::shared_ptr<torch::nn::Module> root;
  std::function<Tensors(const Tensors&)> forward;
};

// How one tensor is on a rank, and what its gradient means, is a Layout: whole, shards, or (with a rank's gradient a
// term of a sum) shared; an output may also leave as partial.
struct OneModuleCase {
  std::string what;
  std::string rules;  // of the plan; a style alone is that of `m`
  std::function<OneModule()> make;
  std::function<Tensors()> inputs;  // whole
  std::vector<Layout> arrive;       // how a rank gets each input
  std::vector<Layout> leave;        // how a rank gives each output
  double tolerance = 0;             // relative to the largest value; 0: equal to the bit
  std::string config = "{}";
};

// The same small integers for the same seed.
at::Tensor Integers(at::IntArrayRef shape, int64_t seed);

// [2, 5, 6], integers.
Tensors Hidden();

template <class Holder>
OneModule Wrap(Holder holder, std::function<Tensors(Holder&, const Tensors&)> forward) {
  auto root = std::make_shared<torch::nn::Module>();
  root->register_module("m", holder);
  const torch::NoGradGuard no_grad;
  int64_t seed = 1;
  for (at::Tensor& p : root->parameters()) p.set_data(Integers(p.sizes(), seed++));
  return {root, [holder, forward](const Tensors& inputs) mutable { return forward(holder, inputs); }};
}

// A Linear(in, out) with a bias.
std::function<OneModule()> OneLinear(int64_t in, int64_t out);
// Eleven rows, which no number of ranks above one divides, of six features; padding_idx 9; what it gives times `scale`.
std::function<OneModule()> OneEmbedding(double scale);

// Throws with what differs and where.
void CheckOneModule(const OneModuleCase& test_case, const std::string& mesh);

}  // namespace moonshard::test
