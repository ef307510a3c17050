// LibTorch's functions that know no layouts, on a sharded model: each is refused, at the latest at the next call.
#include <catch2/catch.hpp>

#include <sstream>
#include <tuple>

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/serialize.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

// What `run` throws, which must be one of `finding`.
Diagnostic Thrown(Finding finding, const std::function<void()>& run) {
  try {
    run();
  } catch (const PlanError& error) {
    Expect(error.diagnostics()[0].finding == finding, error.what());
    return error.diagnostics()[0];
  }
  throw std::runtime_error("nothing was thrown");
}

at::Tensor TwoRows() { return torch::arange(6).reshape({2, 3}); }

Plan UnitsPlan() {
  Plan plan = NetRules();
  plan.data_parallel.emplace().wrap = {{"layer_*"}};
  return plan;
}

std::string ArchiveOf(const Net& net) {
  std::ostringstream archive;
  torch::save(net, archive);
  return archive.str();
}

TEST_CASE("torch::save and torch::load refuse a sharded model and name the functions for it") {
  const std::string archive = ArchiveOf(MakeNet({}));
  for (const char* mesh_text : {"tp=2", "dp=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      auto model = Parallelize(MakeNet({}), UnitsPlan(), mesh);
      const Diagnostic saved = Thrown(Finding::kUnshardedFunction, [&] { ArchiveOf(model.net()); });
      Expect(saved.help.find("FullState") != std::string::npos, saved.help);
      std::istringstream stream(archive);
      const Diagnostic loaded = Thrown(Finding::kUnshardedFunction, [&] { torch::load(model.net(), stream); });
      Expect(loaded.help.find("LoadCheckpoint") != std::string::npos, loaded.help);
      model.forward(TwoRows());
    });
  }
}

TEST_CASE("a full tensor in the place of a shard is found at the next call") {
  for (const char* mesh_text : {"tp=2", "dp=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      auto model = Parallelize(MakeNet({}), UnitsPlan(), mesh);
      model.forward(TwoRows());
      const auto full = MakeNet({})->named_parameters();
      at::Tensor down = model.net()->layers[1]->down->weight;
      const at::Tensor shard = down.detach().clone();
      down.set_data(full["layer_1.down.weight"].detach());
      const Diagnostic d = Thrown(Finding::kUnshardedFunction, [&] { model.forward(TwoRows()); });
      Expect(d.path == "layer_1.down.weight", d.path);
      down.set_data(shard);
      model.forward(TwoRows());
    });
  }
}

template <class Parameters>
concept CanClip = requires(const Parameters& parameters) {
  torch::nn::utils::clip_grad_norm_(parameters, 1.0);
};

TEST_CASE("clip_grad_norm_ does not compile with the parameters of a sharded model") {
  STATIC_REQUIRE(CanClip<std::vector<at::Tensor>>);
  STATIC_REQUIRE(!CanClip<decltype(std::declval<ParallelModel<Net>>().parameters())>);
}

TEST_CASE("autograd::grad for a parameter that fsdp shards throws, and backward still brings the shard's gradient") {
  for (const bool mixed : {false, true}) {
    RunRanks("dp=2", [&](DeviceMesh& mesh) {
      Plan plan = UnitsPlan();
      if (mixed) plan.precision.emplace().parameters = "float32";
      auto model = Parallelize(MakeNet({}), plan, mesh);
      const at::Tensor up = model.net()->layers[1]->up->weight;
      for (int step = 0; step < 2; ++step) {
        const Diagnostic d = Thrown(Finding::kUnshardedFunction, [&] {
          const at::Tensor loss = model.forward(TwoRows()).sum();
          torch::autograd::grad({loss}, {up}, {}, std::nullopt, false, /*allow_unused=*/true);
        });
        Expect(d.message.find("autograd::grad") != std::string::npos, d.message);
      }
      model.forward(TwoRows()).sum().backward();
      Expect(up.grad().defined() && up.grad().sizes() == up.sizes(), "the shard's gradient");
      // What is asked for besides parameters is had as before.
      const at::Tensor x = torch::ones({2, kHidden}, mixed ? torch::kFloat32 : torch::kFloat64).requires_grad_();
      const at::Tensor y = model.net()->layers[0](x).sum();
      Expect(torch::autograd::grad({y}, {x})[0].defined(), "the gradient of an input");
    });
  }
}

TEST_CASE("autograd::grad for a parameter whose gradient is summed over tp or by ddp throws, for a shard it does not") {
  Plan shared = NetRules();
  shared.rules.back().pattern = "{embed,head,layer_*}";
  Rule norms;
  norms.pattern = "layer_*.norm";
  norms.style.name = "shared";
  norms.style.params = {{"*", Layout::Shared()}};
  shared.rules.push_back(norms);
  for (Rule& rule : shared.rules) {  // the norm feeds a colwise layer that takes what it has
    if (rule.pattern == "layer_*.up") rule.style.inputs = {Redistribution{Layout::Shared(), Layout::Shared()}};
  }
  shared.rules.back().style.inputs = {Redistribution{Layout::Replicate(), Layout::Shared()}};
  shared.rules.back().style.outputs = {Redistribution{Layout::Shared(), Layout::Shared()}};
  Plan ddp = NetRules();
  ddp.data_parallel.emplace().shards = false;
  for (const auto& [mesh_text, plan, own] : {std::tuple("tp=2", shared, true), std::tuple("dp=2", ddp, false)}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      auto model = Parallelize(MakeNet({}), plan, mesh);
      const at::Tensor norm = model.net()->layers[1]->norm->weight;
      const at::Tensor up = model.net()->layers[1]->up->weight;
      const auto grad_of = [&](const at::Tensor& parameter) {
        return torch::autograd::grad({model.forward(TwoRows()).sum()}, {parameter});
      };
      const Diagnostic d = Thrown(Finding::kUnshardedFunction, [&] { grad_of(norm); });
      Expect(d.path == "layer_1.norm.weight", d.path);
      Expect(d.message.find("sum over ranks") != std::string::npos, d.message);
      if (own) {
        const at::Tensor gradient = grad_of(up)[0];
        model.forward(TwoRows()).sum().backward();
        Expect(gradient.defined() && gradient.equal(up.grad()), "the gradient of a shard");
      } else {
        Thrown(Finding::kUnshardedFunction, [&] { grad_of(up); });
        model.forward(TwoRows()).sum().backward();
      }
      Expect(norm.grad().defined(), "the gradient of the norm after a backward");
    });
  }
}

}  // namespace
}  // namespace moonshard::test
