// A plan that leaves a gradient of tp unreduced: calls that would train with it are refused, all others run.
#include "engine/runtime/apply/gradient_guard.h"

#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/plan/compile/checks.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

// x [B, T, 4] -> [B, T, 4].
struct GuardedImpl : torch::nn::Module {
  GuardedImpl() {
    norm = register_module("norm", nn::RMSNorm(nn::RMSNormOptions(4)));
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(4, 6)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(6, 4)));
    int64_t seed = 1;
    for (at::Tensor& p : parameters()) {
      p.set_data((torch::arange(p.numel(), torch::kFloat64).reshape(p.sizes()) * seed++).remainder(5) - 2);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return down(up(norms ? norm(x) : x)); }
  nn::RMSNorm norm = nullptr;
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
  bool norms = false;
};
MOONSHARD_MODULE(Guarded);

Plan PlanWith(const std::vector<std::pair<std::string, Style>>& rules) {
  Plan plan = PlanOfRules("guarded", rules);
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    plan.rules[i].source = {"guarded.lua", static_cast<int>(i) + 1, 0, 0, ""};
  }
  return plan;
}

Style NormStyle(const Layout& input, const Layout& weight) {
  Style style;
  style.name = "norm_alone";
  style.params = {{"weight", weight}};
  style.inputs = {Redistribution{input, input}};
  style.outputs = {Redistribution{input, input}};
  return style;
}

// `up` takes its input as replicate in place of shared.
Plan UnreducedInput() {
  Style up = ColwiseStyle();
  up.name = "unshared";
  up.inputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
  return PlanWith(
      {{"norm", NormStyle(Layout::Replicate(), Layout::Replicate())}, {"up", up}, {"down", RowwiseStyle()}});
}

// `norm` works on shards of the sequence, and its weight is replicate in place of shared.
Plan UnreducedWeight() {
  return PlanWith({{"norm", NormStyle(Layout::Shard(1), Layout::Replicate())},
                   {"up", ColwiseStyle(Layout::Shard(1))},
                   {"down", RowwiseStyle(Layout::Shard(1))}});
}

at::Tensor GuardedInput() { return torch::arange(2 * 4 * 4, torch::kFloat64).remainder(3).reshape({2, 4, 4}) - 1; }

struct GuardedCall {
  Plan plan;
  bool norms = false;
  bool input_trains = true;
  bool frozen = false;
  bool grad_mode = true;
  ApplyOptions options = {};
  CallObserver* observer = nullptr;
};

// Returns the error of a call, "" for a call that runs: its results are then those of the unsharded model.
std::string ErrorOfCall(const GuardedCall& call) {
  Guarded full;
  full->norms = call.norms;
  const at::Tensor want = full(GuardedInput()).detach();
  std::string text;
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Guarded net;
    net->norms = call.norms;
    auto model = Parallelize(net, call.plan, mesh, call.options);
    if (call.frozen) {
      for (at::Tensor& p : net->parameters()) p.set_requires_grad(false);
    }
    if (call.observer != nullptr && mesh.rank() == 0) model.applied().Watch(*call.observer);
    const bool shards = call.norms && call.plan.rules[0].style.inputs[0]->from[MeshAxis::kTp].is_shard();
    const auto own = [&](const at::Tensor& x) { return shards ? x.narrow(1, 2 * mesh.rank(), 2) : x; };
    at::Tensor x = own(GuardedInput()).clone().set_requires_grad(call.input_trains);
    const torch::AutoGradMode mode(call.grad_mode);
    try {
      Expect(torch::allclose(model.forward(x).detach(), own(want), 1e-12, 1e-12), "output");
    } catch (const PlanError& error) {
      Expect(error.diagnostics()[0].finding == Finding::kStyleDoesNotFit, error.what());
      if (mesh.rank() == 0) text = error.what();
    }
    const torch::NoGradGuard no_grad;
    Expect(torch::allclose(model.forward(x), own(want), 1e-12, 1e-12), "output of an evaluation after it");
  });
  return text;
}

TEST_CASE("a call whose input gradient would not be reduced is an error") {
  using Catch::Contains;
  const Plan plan = UnreducedInput();
  CHECK_THAT(ErrorOfCall({.plan = plan}), Contains("guarded.lua:2: error[MS0309]") &&
                                              Contains("a backward through 'up'") &&
                                              Contains("gradient of its input") && Contains("used as shared") &&
                                              Contains("use colwise {}") && Contains("unreduced_gradients"));
  // The stream behind a norm that trains requires a gradient, whatever the input of the model.
  CHECK_THAT(ErrorOfCall({.plan = plan, .norms = true, .input_trains = false}), Contains("'up'"));
}

TEST_CASE("calls after which no gradient stays unreduced run") {
  const Plan plan = UnreducedInput();
  CHECK(ErrorOfCall({.plan = plan, .grad_mode = false}).empty());
  CHECK(ErrorOfCall({.plan = plan, .input_trains = false}).empty());
  CHECK(ErrorOfCall({.plan = plan, .norms = true, .input_trains = false, .frozen = true}).empty());
  CHECK(ErrorOfCall({.plan = plan, .options = {.unreduced_gradients = true}}).empty());
  const Plan right = PlanWith({{"norm", NormStyle(Layout::Replicate(), Layout::Replicate())},
                               {"up", ColwiseStyle()},
                               {"down", RowwiseStyle()}});
  CHECK(ErrorOfCall({.plan = right, .norms = true}).empty());
}

TEST_CASE("a call whose weight gradient would not be reduced is an error") {
  using Catch::Contains;
  const Plan plan = UnreducedWeight();
  CHECK_THAT(ErrorOfCall({.plan = plan, .norms = true, .input_trains = false}),
             Contains("guarded.lua:1: error[MS0309]") && Contains("a backward through 'norm'") &&
                 Contains("gradient of its weight") && Contains("weight = shared"));
  CHECK(ErrorOfCall({.plan = plan, .norms = true, .frozen = true}).empty());
  CHECK(ErrorOfCall({.plan = plan, .norms = true, .grad_mode = false}).empty());
}

TEST_CASE("an observer that examines the plan gets the call, one of training does not") {
  struct Examiner : CallObserver {};
  struct Watcher : CallObserver {
    bool examines() const override { return false; }
  };
  Examiner examiner;
  Watcher watcher;
  // The observer is rank 0's, which reports; the other rank refuses by itself, before any collective of the call.
  GuardedCall call = {.plan = UnreducedInput()};
  call.observer = &watcher;
  CHECK_THAT(ErrorOfCall(call), Catch::Contains("MS0309"));
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(Guarded(), call.plan, mesh);
    model.applied().Watch(examiner);
    const at::Tensor x = GuardedInput().requires_grad_();
    model.forward(x);
    model.applied().Unwatch(examiner);
    bool refused = false;
    try {
      model.forward(x);
    } catch (const PlanError&) {
      refused = true;
    }
    Expect(refused, "refused once nothing examines it");
    const torch::NoGradGuard no_grad;
    model.forward(x);
  });
}

TEST_CASE("a call inside a recomputed module is refused in the forward") {
  std::string text;
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Plan plan = UnreducedInput();
    Recomputed section;
    section.modules = {{"up"}};
    plan.recompute = {section};
    auto model = Parallelize(Guarded(), plan, mesh);
    try {
      model.forward(GuardedInput().requires_grad_());
    } catch (const PlanError& error) {
      if (mesh.rank() == 0) text = error.what();
    }
    const torch::NoGradGuard no_grad;
    model.forward(GuardedInput());
  });
  CHECK_THAT(text, Catch::Contains("MS0309") && Catch::Contains("'up'"));
}

TEST_CASE("an unreduced gradient is found behind another contradiction of the same style") {
  Plan plan = UnreducedInput();
  Style& up = plan.rules[1].style;
  up.outputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    const auto applied = ParallelizeModule(*Guarded(), plan, mesh);
    const CompiledPlan& compiled = applied->plan();
    const auto of = [&](const char* path) {
      return FindUnreducedGradient(compiled, static_cast<size_t>(compiled.tree->Find(path)));
    };
    Expect(of("up").has_value() && !of("up")->of_weight && of("up")->error.severity == Severity::kError, "of up");
    Expect(!of("down") && !of("norm") && !of(""), "none elsewhere");
  });
}

}  // namespace
}  // namespace moonshard::test
