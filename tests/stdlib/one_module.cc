#include "tests/stdlib/one_module.h"

#include "dsl/language/eval/load_plan.h"
#include "engine/core/base/json.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

struct Run {
  Tensors outputs;
  Tensors input_grads;  // undefined for integers
};

// Two backwards through the sum of outputs times weights; `weight` gives those of output i as this rank counts them.
Run RunModuleTwice(const OneModule& model, Tensors inputs, const std::function<at::Tensor(size_t)>& weight) {
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

at::Tensor Sum(AppliedPlan& applied, const at::Tensor& terms) {
  const CollectiveLabel label("the terms of a sum");
  CollectiveUse use;
  use.label = &label;
  use.shape = terms.sizes();
  return applied.group(MeshAxis::kTp).AllReduce(terms.clone(), use);
}

// What of a whole tensor a rank has.
at::Tensor ShardOf(const at::Tensor& full, Layout layout, const DeviceMesh& mesh) {
  if (!layout.is_shard()) return full;
  if (layout.dim < 0) layout.dim += static_cast<int>(full.dim());
  layout = layout.Sized(full.size(layout.dim));
  return SliceShard(full, LocalIntervals(full.sizes().vec(), layout, mesh.shape(), mesh.rank()));
}

// What a rank brings of an output's gradient: of what is shared rank 0 all, and the others nothing.
at::Tensor GradientOf(const at::Tensor& full, const Layout& layout, const DeviceMesh& mesh) {
  at::Tensor shard = ShardOf(full, layout, mesh);
  if (layout.kind != LayoutKind::kShared || mesh.rank() == 0) return shard;
  at::Tensor own = shard.clone();
  own.narrow(-1, layout.last > 0 ? own.size(-1) - layout.last : 0, layout.last > 0 ? layout.last : own.size(-1))
      .zero_();
  return own;
}

std::string PlanText(const std::string& rules) {
  return "return plan { " + (rules.find("at(") == std::string::npos ? "at('m', " + rules + ")" : rules) + " }";
}

}  // namespace

at::Tensor Integers(at::IntArrayRef shape, int64_t seed) {
  const int64_t count = c10::multiply_integers(shape);
  return (torch::arange(count, torch::kFloat64) * (2 * seed + 3) + seed).remainder(7).reshape(shape) - 3;
}

Tensors Hidden() { return {Integers({2, 5, 6}, 5)}; }

std::function<OneModule()> OneLinear(int64_t in, int64_t out) {
  return [=] {
    return Wrap<nn::Linear>(nn::Linear(torch::nn::LinearOptions(in, out)),
                            [](nn::Linear& m, const Tensors& x) { return Tensors{m(x[0])}; });
  };
}

std::function<OneModule()> OneEmbedding(double scale) {
  return [=] {
    nn::Embedding table(torch::nn::EmbeddingOptions(11, 6).padding_idx(9));
    return Wrap<nn::Embedding>(table, [scale](nn::Embedding& m, const Tensors& x) { return Tensors{m(x[0]) * scale}; });
  };
}

void CheckOneModule(const OneModuleCase& test_case, const std::string& mesh_text) {
  const OneModule full_model = test_case.make();
  const Tensors inputs = test_case.inputs();
  Tensors weights;
  const Run expected = RunModuleTwice(full_model, inputs, [&](size_t i) {
    if (weights.size() <= i)
      weights.push_back(Integers(full_model.forward(inputs)[i].sizes(), 11 + static_cast<int64_t>(i)));
    return weights[i];
  });
  RunRanks(mesh_text, [&](DeviceMesh& mesh) {
    PlanInputs plan_inputs;
    plan_inputs.mesh = mesh.shape();
    plan_inputs.config = ParseJson(test_case.config, "config.json").ValueOrThrow();
    const Plan plan = EvaluatePlan(PlanText(test_case.rules), "style.lua", plan_inputs).ValueOrThrow();
    const OneModule model = test_case.make();
    const auto applied = ParallelizeModule(*model.root, plan, mesh, {.initial = InitialValues::kUnchecked});
    Tensors own;
    for (size_t i = 0; i < inputs.size(); ++i) own.push_back(ShardOf(inputs[i], test_case.arrive[i], mesh));
    const Run run =
        RunModuleTwice(model, own, [&](size_t i) { return GradientOf(weights[i], test_case.leave[i], mesh); });
    const double tolerance = test_case.tolerance;
    for (size_t i = 0; i < run.outputs.size(); ++i) {
      at::Tensor got = run.outputs[i].detach();
      if (test_case.leave[i] == Layout::Partial()) got = Sum(*applied, got);
      Compare(got, ShardOf(expected.outputs[i].detach(), test_case.leave[i], mesh), tolerance,
              "output " + std::to_string(i));
    }
    for (size_t i = 0; i < run.input_grads.size(); ++i) {
      Expect(run.input_grads[i].defined() == expected.input_grads[i].defined(), "a gradient or none");
      if (!run.input_grads[i].defined()) continue;
      at::Tensor got = run.input_grads[i];
      if (test_case.arrive[i] == Layout::Shared()) got = Sum(*applied, got);
      Compare(got, ShardOf(expected.input_grads[i], test_case.arrive[i], mesh), tolerance,
              "gradient of input " + std::to_string(i));
    }
    const auto full_parameters = full_model.root->named_parameters();
    for (const LiveParameter& p : applied->parameters()) {
      if (p.is_buffer) continue;
      Compare(GatherFull(*applied, p, p.tensor.grad()), full_parameters[p.path].grad(), tolerance,
              "gradient of " + p.path);
    }
  });
}

}  // namespace moonshard::test
