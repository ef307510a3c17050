// What keeps ranks alike, and parameters whole for a while, on thread ranks.
#include <catch2/catch.hpp>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/clip_grad_norm.h"
#include "engine/runtime/sharded_model/replicas.h"
#include "engine/runtime/sharded_model/unshard_scope.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

Plan FsdpPlan(bool shards = true) {
  Plan plan = NetRules();
  plan.data_parallel.emplace().shards = shards;
  if (shards) plan.data_parallel->wrap = {{"layer_*"}};
  return plan;
}

TEST_CASE("a replica that drifted is named with its rank, and broadcast mends it") {
  for (const char* mesh_text : {"dp=2", "dp_replicate=2,dp_shard=2", "tp=2", "dp_replicate=3"}) {
    DYNAMIC_SECTION(mesh_text) {
      RunRanks(mesh_text, [&](DeviceMesh& mesh) {
        const bool ddp = std::string(mesh_text) == "dp=2" || std::string(mesh_text) == "dp_replicate=3";
        auto model = Parallelize(MakeNet({}), FsdpPlan(!ddp), mesh);
        Expect(FindDrift(model).empty(), "equal replicas are not named");
        const int64_t last = mesh.shape().world_size() - 1;
        std::vector<at::Tensor> before;
        for (const LiveParameter& p : model.applied().parameters()) {
          before.push_back(p.tensor.detach().clone());
          // The sign of a zero is a drift too.
          if (p.path == "layer_1.norm.weight") before.back().select(0, 0).fill_(-0.0);
        }
        {
          const torch::NoGradGuard no_grad;
          for (const LiveParameter& p : model.applied().parameters()) {
            if (p.path != "layer_1.norm.weight") continue;
            p.tensor.select(0, 0).fill_(mesh.rank() == last ? 0.0 : -0.0);
          }
        }
        const Diagnostics found = FindDrift(model);
        // Under HSDP the others hold other shards, which nobody changed.
        const bool shares = mesh.coordinate(MeshAxis::kDpShard) == mesh.shape().Coordinate(last, MeshAxis::kDpShard);
        if (!ddp && mesh.shape().size(MeshAxis::kDpShard) > 1 && !shares) {
          Expect(found.empty(), "equal replicas are not named");
          BroadcastReplicas(model);
          Expect(FindDrift(model).empty(), "nor after a broadcast");
          return;
        }
        Expect(found.size() == 1 && found[0].path == "layer_1.norm.weight", "one drift, by its path");
        Expect(found[0].declared.find("rank " + std::to_string(last)) != std::string::npos, found[0].declared);
        BroadcastReplicas(model);
        Expect(FindDrift(model).empty(), "nothing drifts after a broadcast");
        size_t i = 0;
        for (const LiveParameter& p : model.applied().parameters()) {
          const at::Tensor& want = before[i++];
          ExpectEqual(p.tensor.detach().reshape(-1).view(torch::kByte), want.reshape(-1).view(torch::kByte),
                      p.path + " is the first's");
        }
      });
    }
  }
}

// Trains three steps with an optimizer that computes one number from its parameters, of which each rank has shards.
void StepsOfLbfgs(ParallelModel<Net>& model) {
  torch::optim::LBFGS optimizer(model.parameters(), torch::optim::LBFGSOptions(0.1).max_iter(2));
  for (int step = 0; step < 3; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      at::Tensor loss = model.forward(torch::arange(6).reshape({2, 3})).square().mean();
      loss.backward();
      return loss;
    });
  }
}

TEST_CASE("a drift check ends a training whose ranks drift apart") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    auto unchecked = Parallelize(MakeNet({}), NetRules(), mesh);
    StepsOfLbfgs(unchecked);
    Expect(!FindDrift(unchecked).empty(), "LBFGS drifts");
    auto model = Parallelize(MakeNet({}), NetRules(), mesh);
    const DriftCheck check(model, 1);
    std::string message;
    try {
      StepsOfLbfgs(model);
    } catch (const PlanError& error) {
      message = error.what();
      Expect(error.diagnostics()[0].finding == Finding::kRanksDisagree, message);
    }
    Expect(message.find("norm.weight") != std::string::npos, message);
  });
}

TEST_CASE("a drift check compares in every n-th training call, and not where ranks stay alike") {
  for (const bool recompute : {false, true}) {
    RunRanks("tp=2", [&](DeviceMesh& mesh) {
      Plan plan = NetRules();
      if (recompute) plan.recompute.emplace_back().modules = {{"layer_*"}};
      auto model = Parallelize(MakeNet({}), plan, mesh);
      torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.1));
      const auto gathers = [&] {
        return model.applied().counts().of(Direction::kForward, CollectiveKind::kAllGather).count;
      };
      const auto step = [&] {
        const int64_t before = gathers();
        optimizer.zero_grad();
        model.forward(torch::arange(6).reshape({2, 3})).square().mean().backward();
        optimizer.step();
        return gathers() - before;
      };
      const int64_t none = step();
      {
        const DriftCheck check(model, 2);
        for (int64_t i = 0; i < 7; ++i) {
          {
            const torch::NoGradGuard no_grad;
            model.forward(torch::arange(6).reshape({2, 3}));
          }
          const int64_t compared = step() - none;
          Expect(compared == (i > 0 && i % 2 == 0 ? 1 : 0),
                 "step " + std::to_string(i) + ": " + std::to_string(compared));
        }
      }
      for (int i = 0; i < 3; ++i) Expect(step() == none, "after it");
      std::string message;
      try {
        const DriftCheck check(model, 0);
      } catch (const PlanError& error) {
        message = error.what();
      }
      Expect(message.find("every = 0") != std::string::npos, message);
    });
  }
}

// Steps whose gradients `change` may change before the optimizer's step; what a drift check throws before one of them.
std::string DriftOfSteps(ParallelModel<Net>& model, const std::function<void()>& change,
                         const std::function<void(torch::optim::Optimizer&)>& clear) {
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
  const DriftCheck check(model, 1);
  try {
    for (int64_t step = 0; step < 3; ++step) {
      clear(optimizer);
      const at::Tensor ids = torch::arange(6).reshape({2, 3}) + model.applied().mesh().coordinate(MeshAxis::kDpShard);
      (model.forward(ids) - 0.3).square().sum().backward();
      change();
      optimizer.step();
    }
  } catch (const PlanError& error) {
    Expect(error.diagnostics()[0].finding == Finding::kRanksDisagree, error.what());
    return error.diagnostics()[0].message + "; " + error.diagnostics()[0].declared;
  }
  return "";
}

TEST_CASE("a drift check finds gradients that ranks have scaled by different factors, also of shards") {
  const auto clear = [](torch::optim::Optimizer& optimizer) { optimizer.zero_grad(); };
  const auto zero = [](torch::optim::Optimizer& optimizer) { optimizer.zero_grad(/*set_to_none=*/false); };
  for (const std::string mesh_text : {"tp=2", "dp=2", "dp=3"}) {
    const Plan plan = mesh_text == "tp=2" ? NetRules() : FsdpPlan();
    DYNAMIC_SECTION(mesh_text) {
      RunRanks(mesh_text, [&](DeviceMesh& mesh) {
        const auto drift = [&](const std::function<void(ParallelModel<Net>&)>& change, const auto& cleared) {
          auto model = Parallelize(MakeNet({}), plan, mesh);
          for (const LiveParameter& p : model.applied().parameters()) {
            const bool shard = p.placement[MeshAxis::kDpShard].is_shard();
            Expect(mesh_text == "tp=2" || shard || p.shape.empty(), p.path + " is a shard");
          }
          return DriftOfSteps(
              model, [&] { change(model); }, cleared);
        };
        const auto by_shards = [](ParallelModel<Net>& model) {
          torch::nn::utils::clip_grad_norm_(model.net()->parameters(), 0.1);
        };
        const std::string found = drift(by_shards, clear);
        Expect(found.find("ranks scaled their gradients by different factors; rank 0: a factor of 0.") == 0, found);
        // What the kept gradients no longer show: a replica shows it, where there is one.
        const std::string zeroed = drift(by_shards, zero);
        Expect(zeroed.find("factor") == std::string::npos, zeroed);
        // The right norm; one factor; by value; unchanged.
        Expect(drift([](ParallelModel<Net>& model) { ClipGradNorm(model, 0.1); }, clear).empty(), "the full norm");
        const auto each = [](ParallelModel<Net>& model, const auto& change) {
          for (const at::Tensor& parameter : model.net()->parameters()) {
            if (parameter.grad().defined()) change(parameter.grad());
          }
        };
        const auto by_value = [&](ParallelModel<Net>& model) {
          each(model, [](const at::Tensor& grad) { grad.clamp_(-0.01, 0.01); });
        };
        Expect(drift(by_value, clear).empty(), "by value");
        const auto half = [&](ParallelModel<Net>& model) {
          each(model, [](const at::Tensor& grad) { grad.mul_(0.5); });
        };
        Expect(drift(half, clear).empty(), "one factor");
        Expect(drift([](ParallelModel<Net>&) {}, clear).empty(), "unchanged");
        Expect(drift([](ParallelModel<Net>&) {}, [](torch::optim::Optimizer&) {}).empty(), "gradients that add up");
      });
    }
  }
}

TEST_CASE("an unshard scope gives whole parameters, and shards after it, whatever happens inside") {
  for (const char* mesh_text : {"dp=2", "dp=3"}) {
    RunRanks(mesh_text, [](DeviceMesh& mesh) {
      Net full = MakeNet({});
      auto model = Parallelize(MakeNet({}), FsdpPlan(), mesh);
      const auto want = full->named_parameters();
      std::vector<at::Tensor> pieces;
      for (const at::Tensor& p : model.parameters()) pieces.push_back(p.detach().clone());
      const auto expect_shards = [&](double factor) {
        const std::vector<at::Tensor> now = model.parameters();
        for (size_t i = 0; i < now.size(); ++i) {
          ExpectEqual(now[i].detach(), pieces[i] * factor, "shard " + std::to_string(i));
        }
      };
      try {
        const UnshardScope scope(model, UnshardScope::Writes::kKept);
        for (const auto& entry : model.net()->named_parameters()) {
          ExpectEqual(entry.value().detach(), want[entry.key()].detach(), entry.key());
          const torch::NoGradGuard no_grad;
          if (entry.value().dim() > 0) entry.value().mul_(2);
        }
        throw std::runtime_error("planted");
      } catch (const std::runtime_error& error) {
        Expect(std::string(error.what()) == "planted", error.what());
      }
      expect_shards(1);
      {
        const UnshardScope scope(model);
        const torch::NoGradGuard no_grad;
        for (const at::Tensor& p : model.net()->parameters()) {
          if (p.dim() > 0) p.mul_(2);
        }
      }
      expect_shards(1);
      {
        const UnshardScope scope(model, UnshardScope::Writes::kKept);
        const torch::NoGradGuard no_grad;
        for (const at::Tensor& p : model.net()->parameters()) p.mul_(2);
      }
      expect_shards(2);
    });
  }
}

}  // namespace
}  // namespace moonshard::test
