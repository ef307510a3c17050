// Recomputation changes when activations are made, and nothing else: outputs and gradients are those without it to the
// bit, alone, under tensor parallelism and inside units of fsdp.
#include "engine/runtime/recompute/recompute.h"

#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/plan/compile/cost.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/autocast.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

at::Tensor Ids(int64_t r) { return (torch::arange(2 * 5) * (r + 2) + r).remainder(kVocabulary).view({2, 5}); }

struct Setup {
  std::string mesh;
  std::vector<std::string> recomputed;
};

Plan PlanOf(const std::vector<std::string>& recomputed) {
  Plan plan = NetRules();
  plan.data_parallel.emplace().wrap = {{"layer_*"}};
  if (!recomputed.empty()) {
    plan.recompute.emplace_back();
    for (const std::string& pattern : recomputed) plan.recompute.back().modules.push_back({pattern});
  }
  return plan;
}

struct Outcome {
  at::Tensor logits;
  std::map<std::string, at::Tensor> grads;
  CollectiveCounts counts;
  int64_t layer_runs = 0;
};

// Two backwards.
Outcome Run(const DeviceMesh& mesh, const std::vector<std::string>& recomputed, const Behaviour& behaviour) {
  auto model = Parallelize(MakeNet(behaviour), PlanOf(recomputed), mesh);
  Outcome outcome;
  for (int i = 0; i < 2; ++i) {
    model.applied().ClearCounts();
    model.net()->layers[0]->runs = 0;
    outcome.logits = model.forward(Ids(mesh.coordinate(MeshAxis::kDpShard)));
    (outcome.logits * outcome.logits.detach().cos()).sum().backward();
  }
  outcome.counts = model.applied().counts();
  outcome.layer_runs = model.net()->layers[0]->runs;
  for (const LiveParameter& p : model.applied().parameters()) outcome.grads[p.path] = p.tensor.grad();
  const PlanTotals totals = TotalsOf(model.applied().plan(), mesh.rank(), Tokens{2, 5});
  Expect(outcome.counts == totals.collectives || behaviour.twice, "the collectives are not those predicted");
  return outcome;
}

TEST_CASE("gradients under recomputation are those without, to the bit") {
  const std::vector<Setup> setups = {
      {"tp=1", {"layer_*"}},           {"tp=1", {""}},
      {"tp=1", {"layer_*.{up,norm}"}}, {"tp=1", {"layer_*", "layer_*.up"}},
      {"tp=2", {"layer_*"}},           {"tp=2", {"layer_*.{up,down}"}},
      {"dp=2", {"layer_*"}},           {"dp=2", {"layer_*.up"}},
      {"dp=2,tp=2", {"layer_*"}},      {"dp=2,tp=2", {"layer_{0,2}.down", "layer_1"}},
  };
  for (const Setup& setup : setups) {
    for (const bool twice : {false, true}) {
      std::string name = setup.mesh;
      for (const std::string& pattern : setup.recomputed) name += " '" + pattern + "'";
      DYNAMIC_SECTION(name << (twice ? ", a layer called twice" : "")) {
        RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
          Behaviour behaviour;
          behaviour.twice = twice;
          const Outcome plain = Run(mesh, {}, behaviour);
          const Outcome again = Run(mesh, setup.recomputed, behaviour);
          ExpectEqual(again.logits.detach(), plain.logits.detach(), "the logits");
          // The terms of a sum come in another order where a recomputed module is called twice, or reads what others
          // read.
          const bool exact = !twice && setup.recomputed.front() != "layer_*.{up,norm}";
          for (const auto& [path, grad] : plain.grads) {
            if (exact) ExpectEqual(again.grads.at(path), grad, "gradient of " + path);
            if (grad.numel() == 0) continue;
            const double error = ((again.grads.at(path) - grad).abs().max() / grad.abs().max()).item<double>();
            Expect(error < 1e-14, "gradient of " + path + " differs by " + std::to_string(error));
          }
          const int64_t calls = twice ? 2 : 1;
          const bool full_layer = setup.recomputed.front() == "layer_*" || setup.recomputed.front().empty();
          Expect(plain.layer_runs == calls, "a forward runs once");
          Expect(again.layer_runs == (full_layer ? 2 * calls : calls), "a recomputed forward runs twice");
        });
      }
    }
  }
}

TEST_CASE("random numbers and autocast are as they were") {
  torch::manual_seed(5);
  at::Tensor seen;
  const auto inside = [&](std::vector<at::Tensor> in) {
    seen = at::matmul(at::dropout(in[0], 0.5, true), in[0].t());
    return std::vector<at::Tensor>{seen};
  };
  for (const bool autocast : {false, true}) {
    at::Tensor x = torch::randn({6, 6}).requires_grad_();
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor y = Recompute(inside, {x})[0];
    at::autocast::set_autocast_enabled(at::kCPU, false);
    const at::Tensor first = seen.detach();
    CHECK(first.scalar_type() == (autocast ? at::kBFloat16 : at::kFloat));
    const at::Tensor next = torch::rand({3});  // others draw in between
    torch::manual_seed(77);
    const at::Tensor expected = torch::rand({3});
    torch::manual_seed(77);
    y.to(at::kFloat).sum().backward();
    CHECK(at::equal(seen.detach(), first));
    CHECK(seen.requires_grad());
    CHECK(at::equal(torch::rand({3}), expected));  // and go on as if nothing had been drawn
    CHECK(x.grad().defined());
  }
}

TEST_CASE("a second run under autocast has the weights of its step") {
  at::Tensor x = torch::randn({4, 4}), weight = torch::randn({4, 4}).requires_grad_(), seen;
  const auto inside = [&](std::vector<at::Tensor> in) {
    seen = at::matmul(in[0], weight);
    return std::vector<at::Tensor>{seen};
  };
  for (int step = 0; step < 3; ++step) {
    at::Tensor input = x.clone().requires_grad_(), y;
    {
      const nn::Autocast autocast(at::kCPU, at::kBFloat16);
      y = Recompute(inside, {input})[0];
    }
    const at::Tensor first = seen.detach();
    y.to(at::kFloat).sum().backward();
    CHECK(at::equal(seen.detach(), first));
    CHECK(at::autocast::is_autocast_cache_enabled());
    const at::NoGradGuard no_grad;
    weight.add_(1);
  }
}

TEST_CASE("what is not kept") {
  // One large intermediate, which only the rerun makes.
  at::Tensor x = torch::ones({4}).requires_grad_();
  std::weak_ptr<int> alive;
  const auto inside = [&](std::vector<at::Tensor> in) {
    auto token = std::make_shared<int>(1);
    alive = token;
    const at::Tensor wide = at::tanh(in[0].unsqueeze(0).expand({8, 4}).contiguous());
    wide.register_hook([token](const at::Tensor&) {});
    return std::vector<at::Tensor>{wide.sum(0)};
  };
  {
    at::NoGradGuard no_grad;
    Recompute([](std::vector<at::Tensor> in) { return in; }, {x});
  }
  const auto guarded = [&](std::vector<at::Tensor> in) {
    return at::GradMode::is_enabled() ? inside(std::move(in)) : std::vector<at::Tensor>{at::tanh(in[0]) * 8};
  };
  at::Tensor y = Recompute(guarded, {x})[0];
  CHECK(alive.expired());
  y.sum().backward();
  CHECK(alive.expired());
  CHECK(at::allclose(x.grad(), (1 - at::tanh(x.detach()).square()) * 8));
}

TEST_CASE("what passes through, and what needs no gradient") {
  at::Tensor x = torch::ones({3}).requires_grad_();
  const at::Tensor ids = torch::arange(3);
  const auto inside = [](std::vector<at::Tensor> in) {
    return std::vector<at::Tensor>{in[0], in[1] + 1, in[0] * 2, at::Tensor()};
  };
  const std::vector<at::Tensor> out = Recompute(inside, {x, ids});
  CHECK(at::equal(out[1], ids + 1));
  CHECK_FALSE(out[1].requires_grad());
  CHECK_FALSE(out[3].defined());
  (out[0].sum() + out[2].sum()).backward();
  CHECK(at::equal(x.grad(), torch::full({3}, 3.0F)));
}

TEST_CASE("other ways to differentiate are errors") {
  at::Tensor x = torch::ones({3}).requires_grad_();
  const auto square = [](std::vector<at::Tensor> in) { return std::vector<at::Tensor>{in[0] * in[0]}; };
  const at::Tensor one = Recompute(square, {x})[0].sum();
  CHECK_THROWS_WITH(torch::autograd::grad({one}, {x}), Catch::Contains("MS0506"));
  const at::Tensor two = Recompute(square, {x})[0].sum();
  CHECK_THROWS_WITH(torch::autograd::backward({two}, {}, /*retain_graph=*/true, /*create_graph=*/true),
                    Catch::Contains("MS0506"));
}

struct NoTensorImpl : torch::nn::Module {
  int forward(int x) { return x; }
};
MOONSHARD_MODULE(NoTensor);

TEST_CASE("a module that cannot be run again is said before anything changes") {
  const auto failures = RunRanksFailing("tp=1", [](DeviceMesh& mesh) {
    const auto root = std::make_shared<torch::nn::Module>();
    root->register_module("odd", NoTensor());
    Plan plan;
    plan.recompute.emplace_back().modules = {{"odd"}};
    ParallelizeModule(*root, plan, mesh);
  });
  REQUIRE(failures.size() == 1);
  CHECK_THAT(failures[0].text, Catch::Contains("MS0506") && Catch::Contains("'odd'"));
}

}  // namespace
}  // namespace moonshard::test
