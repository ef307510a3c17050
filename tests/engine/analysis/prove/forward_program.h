// ForwardProgram: a small random model, as a list of operators and layers over earlier values, with a random plan; as
// text, so that what a test finds can be read:
//
//   x: [4, 6, 8]; mesh tp=2
//   v1 = Linear0(x) {weight=shard(0), bias=shard(0)} in replicate->shared out shard(-1)->shard(-1)
//   v2 = softmax(v1; 1)
//   v3 = Share1(v2) in shard(2)->replicate
//
// GenerateForward draws the operators while it computes them, on the full tensors and on the tensors that two ranks
// have, so that most programs are right and use shards: an operator whose results on the ranks are neither the full
// result, nor shards, nor terms of it, is kept now and then only. Nothing of this decides whether a program is right:
// the numbers of the step do (forward_fuzz_test.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "engine/plan/plan/plan.h"

namespace moonshard::test {

using Values = std::vector<at::Tensor>;

// A generator whose numbers are the same on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  int64_t Below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(end)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  template <class T>
  const T& Of(const std::vector<T>& all) {
    return all[static_cast<size_t>(Below(static_cast<int64_t>(all.size())))];
  }

 private:
  std::mt19937_64 random_;
};

// One operator: the values that it takes, and its numbers (dims, sizes), which do not depend on a shard.
struct ForwardStep {
  std::string op;                // of forward_operators.cc, or a layer of ForwardLayer
  std::vector<int> of;           // values: 0 is the input x, i + 1 the result of step i
  std::vector<int64_t> numbers;  // of a layer: its sizes
  int id = 0;                    // of a layer: its name is `op` and this number, also in a shortened program
  std::optional<Style> style;    // of a layer: the rule of the plan
};

struct ForwardProgram {
  std::vector<int64_t> input;  // sizes of x
  std::vector<ForwardStep> steps;
  std::string mesh = "tp=2";
  uint64_t values = 0;  // seed of the inputs and parameters

  std::string ToText() const;
  Plan ToPlan() const;
  bool SplitsBatch() const;  // whether the mesh has two ranks of dp, each with half of the rows of x
  // Without step `at`: steps that took its result take its first operand. Steps without an effect on the result are
  // left out too.
  ForwardProgram Without(size_t at) const;
  // Without the steps that have no effect on the result: numbers do not show whether they are right.
  ForwardProgram Pruned() const;
};

// An operator that has no parameters. `draw`: the numbers for these (full) operands; nullopt: it does not take them.
struct ForwardOperator {
  std::string name;
  int arity = 1;
  std::function<std::optional<std::vector<int64_t>>(Draws&, const Values&)> draw;
  std::function<at::Tensor(const Values&, const std::vector<int64_t>&)> body;
};
const std::vector<ForwardOperator>& ForwardOperators();

// Numbers of a given seed, in float64.
at::Tensor RandomValues(at::IntArrayRef sizes, uint64_t seed);

// The model: `block`, a module whose forward runs the steps, with the layers as its children. Every tensor is float64.
struct ForwardNet {
  std::shared_ptr<torch::nn::Module> root;
  std::function<at::Tensor(const at::Tensor& x)> forward;
};
ForwardNet MakeForwardNet(const ForwardProgram& program);

ForwardProgram GenerateForward(uint64_t seed);

// The same forward under a plan in which one declaration of one rule is another one (the layout of a parameter, either
// side of a redistribution, none where there was one, `after`, a masked lookup); nullopt if the draw is of a declaration
// that the program does not have.
std::optional<ForwardProgram> WithOtherPlan(const ForwardProgram& program, Draws& draws);

}  // namespace moonshard::test
