// Every style of the stdlib on one small module, on 2, 3 and 4 thread ranks: outputs, input gradients and parameter
// gradients against the same module without a plan. Integers in float64, so that sums are exact in any order; norms to
// the last bits. Two backwards each: gradients accumulate.
#include <catch2/catch.hpp>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "dsl/eval/load_plan.h"
#include "engine/apply/parallelize.h"
#include "engine/apply/pieces_of_tensor.h"
#include "engine/apply/state.h"
#include "engine/compile/local_shape.h"
#include "engine/nn/embedding.h"
#include "engine/nn/linear.h"
#include "engine/nn/norm.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

using Tensors = std::vector<at::Tensor>;

// A model under test: `m` is the module that the plan speaks of.
struct Model {
  std::shared_ptr<torch::nn::Module> root;
  std::function<Tensors(const Tensors&)> forward;
};

struct Case {
  std::string what;
  std::string rules;  // of the plan
  std::function<Model()> make;
  std::function<Tensors()> inputs;  // whole
  std::vector<Layout> arrive;       // how a rank gets each input
  std::vector<Layout> leave;        // how a rank gives each output
  double tolerance = 0;
};

at::Tensor Integers(at::IntArrayRef shape, int64_t seed) {
  const int64_t count = c10::multiply_integers(shape);
  return (torch::arange(count, torch::kFloat64) * (2 * seed + 3) + seed).remainder(7).reshape(shape) - 3;
}

template <class Holder>
Model Wrap(Holder holder, std::function<Tensors(Holder&, const Tensors&)> forward) {
  auto root = std::make_shared<torch::nn::Module>();
  root->register_module("m", holder);
  const torch::NoGradGuard no_grad;
  int64_t seed = 1;
  for (at::Tensor& p : root->parameters()) p.set_data(Integers(p.sizes(), seed++));
  return {root, [holder, forward](const Tensors& inputs) mutable { return forward(holder, inputs); }};
}

std::function<Model()> Linear(int64_t in, int64_t out) {
  return [=] {
    return Wrap<nn::Linear>(nn::Linear(torch::nn::LinearOptions(in, out)),
                            [](nn::Linear& m, const Tensors& x) { return Tensors{m(x[0])}; });
  };
}

// 11 rows, which no number of ranks above one divides.
std::function<Model()> Embedding(double scale) {
  return [=] {
    nn::Embedding table(torch::nn::EmbeddingOptions(11, 6).padding_idx(9));
    return Wrap<nn::Embedding>(table, [scale](nn::Embedding& m, const Tensors& x) { return Tensors{m(x[0]) * scale}; });
  };
}

template <class Norm>
std::function<Model()> MakeNorm(Norm (*make)()) {
  return [make] { return Wrap<Norm>(make(), [](Norm& m, const Tensors& x) { return Tensors{m(x[0])}; }); };
}

nn::LayerNorm MakeLayerNorm() { return nn::LayerNorm(torch::nn::LayerNormOptions({6})); }
nn::RMSNorm MakeRmsNorm() { return nn::RMSNorm(nn::RMSNormOptions(6)); }

// The angles of a rotary embedding: takes the hidden states for their dtype, and the positions; gives cos and sin.
struct RotaryImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& hidden, const at::Tensor& positions) {
    const at::Tensor angles = positions.unsqueeze(-1).to(hidden.scalar_type()) * torch::arange(1, 4, torch::kFloat64);
    return {angles.cos(), angles.sin()};
  }
};
MOONSHARD_MODULE(Rotary);

Model MakeRotary() {
  return Wrap<Rotary>(Rotary(), [](Rotary& m, const Tensors& x) {
    const auto [cos, sin] = m(x[0], x[1]);
    return Tensors{cos, sin};
  });
}

// Two tensors in, two out.
struct PairImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& a, const at::Tensor& b) { return {a * 2, b * 3}; }
};
MOONSHARD_MODULE(Pair);

Model MakePair() {
  return Wrap<Pair>(Pair(), [](Pair& m, const Tensors& x) {
    const auto [first, second] = m(x[0], x[1]);
    return Tensors{first, second};
  });
}

Tensors Hidden() { return {Integers({2, 5, 6}, 5)}; }
Tensors TwoHidden() { return {Integers({2, 5, 6}, 5), Integers({2, 5, 6}, 8)}; }
Tensors Ids() { return {(torch::arange(10) * 4).remainder(11).reshape({2, 5})}; }
Tensors HiddenAndPositions() { return {Integers({2, 5, 6}, 5), torch::arange(10).reshape({2, 5})}; }

std::vector<Case> Cases() {
  const Layout whole = Layout::Replicate();
  const Layout features = Layout::Shard(-1);
  const Layout sequence = Layout::Shard(1);
  const Layout shared = Layout::Shared();
  return {
      {"colwise", "colwise()", Linear(6, 10), Hidden, {whole}, {features}},
      {"colwise, gathered", "colwise { output = replicate }", Linear(6, 10), Hidden, {whole}, {whole}},
      {"colwise, to the sequence", "colwise { output = shard(1) }", Linear(6, 10), Hidden, {whole}, {sequence}},
      {"colwise of a sequence", "colwise { input = shard(1) }", Linear(6, 10), Hidden, {sequence}, {features}},
      {"colwise of features", "colwise { input = shard(-1) }", Linear(6, 10), Hidden, {features}, {features}},
      {"colwise of what is shared", "colwise { input = shared }", Linear(6, 10), Hidden, {shared}, {features}},
      {"colwise by heads", "colwise { heads = 2, output = replicate }", Linear(6, 8), Hidden, {whole}, {whole}},
      {"rowwise", "rowwise()", Linear(6, 10), Hidden, {features}, {whole}},
      {"rowwise of a whole", "rowwise { input = replicate }", Linear(6, 10), Hidden, {whole}, {whole}},
      {"rowwise, scattered", "rowwise { output = shard(1) }", Linear(6, 10), Hidden, {features}, {sequence}},
      {"rowwise, to features", "rowwise { output = shard(-1) }", Linear(6, 10), Hidden, {features}, {features}},
      {"rowwise, to what is shared", "rowwise { output = shared }", Linear(6, 10), Hidden, {features}, {shared}},
      {"colwise embedding", "colwise { output = replicate }", Embedding(1), Ids, {whole}, {whole}},
      {"vocab_rowwise", "vocab_rowwise()", Embedding(1), Ids, {whole}, {whole}},
      {"vocab_rowwise, scaled", "vocab_rowwise()", Embedding(4), Ids, {whole}, {whole}},
      {"vocab_rowwise, scattered", "vocab_rowwise { output = shard(1) }", Embedding(1), Ids, {whole}, {sequence}},
      {"sequence_parallel", "sequence_parallel()", MakeNorm(MakeLayerNorm), Hidden, {sequence}, {sequence}, 1e-12},
      {"sequence_parallel of rows",
       "sequence_parallel { dim = 0 }",
       MakeNorm(MakeRmsNorm),
       Hidden,
       {Layout::Shard(0)},
       {Layout::Shard(0)},
       1e-12},
      {"sequence_parallel, gathered",
       "sequence_parallel { output = replicate }",
       MakeNorm(MakeRmsNorm),
       Hidden,
       {sequence},
       {whole},
       1e-12},
      {"sequence_parallel, shared",
       "sequence_parallel { output = shared }",
       MakeNorm(MakeRmsNorm),
       Hidden,
       {sequence},
       {shared},
       1e-12},
      {"norm_on a whole", "norm_on(replicate)", MakeNorm(MakeRmsNorm), Hidden, {whole}, {whole}, 1e-12},
      {"norm_on a sequence", "norm_on(shard(1))", MakeNorm(MakeLayerNorm), Hidden, {sequence}, {sequence}, 1e-12},
      {"replicated", "replicated()", Linear(6, 10), Hidden, {whole}, {whole}},
      {"replicated, gathering",
       "replicated { input = shard(1), output = shard(1) }",
       Linear(6, 10),
       Hidden,
       {sequence},
       {sequence}},
      {"rotary_on", "rotary_on(shard(1))", MakeRotary, HiddenAndPositions, {sequence, whole}, {whole, whole}, 1e-15},
      {"prepare_input",
       "prepare_input { { shard(1), replicate }, false }",
       MakePair,
       TwoHidden,
       {sequence, whole},
       {whole, whole}},
      {"prepare_output",
       "prepare_output { false, { replicate, shard(-1) } }",
       MakePair,
       TwoHidden,
       {whole, whole},
       {whole, features}},
  };
}

struct Run {
  Tensors outputs;
  Tensors input_grads;  // undefined for integers
};

// Two backwards through the sum of outputs times weights; `weight` gives those of output i as this rank counts them.
Run RunTwice(const Model& model, Tensors inputs, const std::function<at::Tensor(size_t)>& weight) {
  Run run;
  for (at::Tensor& input : inputs) {
    if (input.is_floating_point()) input = input.clone().requires_grad_();
  }
  for (int backward = 0; backward < 2; ++backward) {
    run.outputs = model.forward(inputs);
    at::Tensor loss = torch::zeros({}, torch::kFloat64);
    for (size_t i = 0; i < run.outputs.size(); ++i) loss = loss + (run.outputs[i] * weight(i)).sum();
    if (loss.requires_grad()) loss.backward();
  }
  for (const at::Tensor& input : inputs) run.input_grads.push_back(input.grad());
  return run;
}

void Compare(const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
  if (tolerance == 0) return ExpectEqual(got, want, what);
  Expect(got.sizes() == want.sizes(), what + ": another shape");
  if (got.numel() == 0) return;
  const double difference = (got - want).abs().max().item<double>();
  Expect(difference <= tolerance * (1 + want.abs().max().item<double>()),
         what + " differs by " + std::to_string(difference));
}

void Check(const Case& test_case, const std::string& mesh_text) {
  const Model whole_model = test_case.make();
  const Tensors inputs = test_case.inputs();
  Tensors weights;
  const Run expected = RunTwice(whole_model, inputs, [&](size_t i) {
    if (weights.size() <= i)
      weights.push_back(Integers(whole_model.forward(inputs)[i].sizes(), 11 + static_cast<int64_t>(i)));
    return weights[i];
  });
  RunRanks(mesh_text, [&](DeviceMesh& mesh) {
    PlanInputs plan_inputs;
    plan_inputs.mesh = mesh.shape();
    const Plan plan =
        EvaluatePlan("return plan { at('m', " + test_case.rules + ") }", "style.lua", plan_inputs).ValueOrThrow();
    const Model model = test_case.make();
    const auto applied = ParallelizeModule(*model.root, plan, mesh);
    const auto piece = [&](const at::Tensor& whole, Layout layout) {
      if (!layout.is_shard()) return whole;
      if (layout.dim < 0) layout.dim += static_cast<int>(whole.dim());
      return CutPiece(whole, LocalIntervals(whole.sizes().vec(), layout, mesh.shape(), mesh.rank()));
    };
    Tensors own;
    for (size_t i = 0; i < inputs.size(); ++i) own.push_back(piece(inputs[i], test_case.arrive[i]));
    const Run run = RunTwice(model, own, [&](size_t i) {
      // The gradient of what is shared is a sum over the ranks: here rank 0 brings all of it.
      const at::Tensor weight = piece(weights[i], test_case.leave[i]);
      return test_case.leave[i] == Layout::Shared() && mesh.rank() > 0 ? torch::zeros_like(weight) : weight;
    });
    const double tolerance = test_case.tolerance;
    for (size_t i = 0; i < run.outputs.size(); ++i) {
      Compare(run.outputs[i].detach(), piece(expected.outputs[i].detach(), test_case.leave[i]), tolerance,
              "output " + std::to_string(i));
    }
    for (size_t i = 0; i < run.input_grads.size(); ++i) {
      Expect(run.input_grads[i].defined() == expected.input_grads[i].defined(), "a gradient or none");
      if (!run.input_grads[i].defined()) continue;
      at::Tensor got = run.input_grads[i];
      if (test_case.arrive[i] == Layout::Shared()) {
        const CollectiveLabel label("the terms of a gradient");
        CollectiveUse use;
        use.label = &label;
        use.shape = got.sizes();
        got = applied->group(MeshAxis::kTp).AllReduce(got.clone(), use);
      }
      Compare(got, piece(expected.input_grads[i], test_case.arrive[i]), tolerance,
              "gradient of input " + std::to_string(i));
    }
    const auto whole_parameters = whole_model.root->named_parameters();
    for (const LiveParameter& p : applied->parameters()) {
      Compare(GatherWhole(*applied, p, p.tensor.grad()), whole_parameters[p.path].grad(), tolerance,
              "gradient of " + p.path);
    }
  });
}

TEST_CASE("a module under a style is the module") {
  for (const Case& test_case : Cases()) {
    for (const char* mesh : {"tp=1", "tp=2", "tp=4"}) {
      DYNAMIC_SECTION(test_case.what << " at " << mesh) { Check(test_case, mesh); }
    }
  }
}

}  // namespace
}  // namespace moonshard::test
