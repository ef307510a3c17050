// Adapters on ranks: values and gradients of the factors are those of one rank that computes with W + scale B A in
// place of W, all else is frozen, and no layer has a collective more than without adapters.
#include <catch2/catch.hpp>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/parallelize.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/predicted.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

constexpr int64_t kRank = 3;
constexpr double kAlpha = 6;

// `residual`: the layout of the hidden states between the linear layers.
Plan RulesWith(const Placement& residual) {
  Style whole;
  whole.name = "whole";
  Style embed = whole;
  embed.outputs = {Redistribution{Layout::Replicate(), residual}};
  Style head = whole;
  head.inputs = {Redistribution{residual, Layout::Replicate()}};
  Style norm = whole;
  if (residual != Placement(Layout::Replicate())) norm.params = {{"*", Layout::Shared()}};
  return PlanOfRules("net", {{"layer_*.up", ColwiseStyle(residual)},
                             {"layer_*.down", RowwiseStyle(residual)},
                             {"embed", embed},
                             {"head", head},
                             {"{layer_*,layer_*.norm}", norm}});
}

Plan Adapted(Plan plan, const std::string& at) {
  Adapter adapter;
  adapter.modules = {{at}};
  adapter.rank = kRank;
  adapter.alpha = kAlpha;
  plan.adapters.push_back(adapter);
  return plan;
}

at::Tensor Ids(int64_t of) { return (torch::arange(10) * 3 + of).remainder(kVocabulary).view({2, 5}); }

// The value of a factor in the test, by path, of the full tensor.
at::Tensor FactorValue(const std::string& path, at::IntArrayRef shape) {
  double seed = 1;
  for (const char c : path) seed = seed * 1.1 + c;
  const int64_t count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(1, count + 1, torch::kFloat64) * std::fmod(seed, 7)).reshape(shape) / 3;
}

// Outputs, and gradients of the factors in full, by path, of a net on one rank whose adapted layers have the weight
// W + scale B A. The loss is the sum over `rows` of the squares of the output.
struct Expected {
  std::vector<at::Tensor> outputs;
  std::map<std::string, at::Tensor> gradients;
};
Expected OnOneRank(bool up, bool down, const std::vector<int64_t>& rows, const std::vector<int>& layers = {0, 1, 2}) {
  Net net = MakeNet({});
  std::map<std::string, at::Tensor> factors;
  for (const int i : layers) {
    const auto adapt = [&](nn::Linear& linear, const std::string& name) {
      const std::string path = "layer_" + std::to_string(i) + "." + name;
      const std::string first = path + ".lora_A.default";
      const std::string second = path + ".lora_B.default";
      factors[first] = FactorValue(first, {kRank, linear->weight.size(1)}).requires_grad_();
      factors[second] = FactorValue(second, {linear->weight.size(0), kRank}).requires_grad_();
      linear->weight = linear->weight.detach() + kAlpha / kRank * factors[second].mm(factors[first]);
    };
    if (up) adapt(net->layers[static_cast<size_t>(i)]->up, "up");
    if (down) adapt(net->layers[static_cast<size_t>(i)]->down, "down");
  }
  Expected out;
  at::Tensor loss = torch::zeros({}, torch::kFloat64);
  for (const int64_t of : rows) {
    const at::Tensor made = net(Ids(of));
    loss = loss + (made * made).sum();
    out.outputs.push_back(made.detach());
  }
  loss.backward();
  for (const auto& [path, factor] : factors) out.gradients[path] = factor.grad();
  return out;
}

CollectiveCounts CountsOfStep(const Plan& plan, DeviceMesh& mesh) {
  Net net = MakeNet({});
  auto sharded = Parallelize(net, plan, mesh);
  const at::Tensor made = sharded.forward(Ids(0));
  (made * made).sum().backward();
  return sharded.applied().counts();
}

void SetFactors(const AppliedPlan& applied) {
  const torch::NoGradGuard no_grad;
  for (const LiveParameter& parameter : applied.parameters()) {
    if (parameter.path.find(".lora_") == std::string::npos) continue;
    parameter.tensor.detach().copy_(
        SliceShard(FactorValue(parameter.path, parameter.shape),
                   LocalIntervals(parameter.shape, parameter.placement, applied.plan().mesh, applied.mesh().rank())));
  }
}

void ExpectGradients(const AppliedPlan& applied, const Expected& expected, double scale) {
  size_t factors = 0;
  for (const LiveParameter& parameter : applied.parameters()) {
    const auto found = expected.gradients.find(parameter.path);
    if (found == expected.gradients.end()) {
      Expect(!parameter.tensor.requires_grad() && !parameter.tensor.grad().defined(), parameter.path + " is frozen");
      continue;
    }
    ++factors;
    const at::Tensor want =
        SliceShard(found->second * scale,
                   LocalIntervals(parameter.shape, parameter.placement, applied.plan().mesh, applied.mesh().rank()));
    Expect(parameter.tensor.grad().defined() && at::allclose(parameter.tensor.grad(), want, 1e-9, 1e-11),
           "the gradient of " + parameter.path);
  }
  Expect(factors == expected.gradients.size(), "every factor is a parameter of the model");
}

TEST_CASE("adapted layers compute and train as W + scale B A does, without more collectives in a layer") {
  for (const bool sequence : {false, true}) {
    const Placement residual = sequence ? Layout::Shard(1) : Layout::Replicate();
    for (const bool recompute : {false, true}) {
      for (const std::string at : {"layer_*.{up,down}", "layer_*.up", "layer_*.down"}) {
        for (const char* shape : {"tp=1", "tp=2", "tp=4"}) {
          INFO(shape << " " << at << (sequence ? " sequence" : "") << (recompute ? " recompute" : ""));
          Plan bare = RulesWith(residual);
          if (recompute) bare.recompute.push_back({{{"layer_*"}}, false, Recomputed::Matmuls::kNone, {}, {}});
          const Plan plan = Adapted(bare, at);
          const Expected expected =
              OnOneRank(at.find("up") != std::string::npos, at.find("down") != std::string::npos, {0});
          RunRanks(shape, [&](DeviceMesh& mesh) {
            const CollectiveCounts without = CountsOfStep(bare, mesh);
            Net net = MakeNet({});
            auto sharded = Parallelize(net, plan, mesh);
            SetFactors(sharded.applied());
            const at::Tensor made = sharded.forward(Ids(0));
            Expect(at::allclose(made.detach(), expected.outputs[0], 1e-9, 1e-11), "the outputs");
            (made * made).sum().backward();
            ExpectGradients(sharded.applied(), expected, 1);
            ExpectPredicted(sharded.applied(), mesh.rank(), {2, 5});
            const CollectiveCounts with = sharded.applied().counts();
            for (const CollectiveKind kind : kCollectiveKinds) {
              Expect(with.of(Direction::kForward, kind) == without.of(Direction::kForward, kind),
                     std::string("forward, ") + ToString(kind));
              // The sums of `shared` factors at the end of the backward are one more all-reduce for the whole model.
              const int64_t more = kind == CollectiveKind::kAllReduce ? 1 : 0;
              Expect(with.of(Direction::kBackward, kind).count <= without.of(Direction::kBackward, kind).count + more,
                     std::string("backward, ") + ToString(kind));
            }
          });
        }
      }
    }
  }
}

TEST_CASE("adapters of weights that every rank uses on a part of the sequence sum their gradients") {
  const Placement residual = Layout::Shard(1);
  Style shared;
  shared.name = "shared";
  shared.params = {{"*", Layout::Shared()}};
  Style embed;
  embed.name = "embed";
  embed.outputs = {Redistribution{Layout::Replicate(), residual}};
  Style head;
  head.name = "head";
  head.inputs = {Redistribution{residual, Layout::Replicate()}};
  const Plan plan = Adapted(PlanOfRules("net", {{"{layer_*,layer_*.*}", shared}, {"embed", embed}, {"head", head}}),
                            "layer_*.{up,down}");
  const Expected expected = OnOneRank(true, true, {0});
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    auto sharded = Parallelize(net, plan, mesh);
    SetFactors(sharded.applied());
    const at::Tensor made = sharded.forward(Ids(0));
    Expect(at::allclose(made.detach(), expected.outputs[0], 1e-9, 1e-11), "the outputs");
    (made * made).sum().backward();
    ExpectGradients(sharded.applied(), expected, 1);
    ExpectPredicted(sharded.applied(), mesh.rank(), {2, 5});
  });
}

TEST_CASE("gradients of factors are summed over data-parallel ranks, in ddp's buckets") {
  Plan plan = Adapted(RulesWith(Layout::Replicate()), "layer_*.{up,down}");
  plan.data_parallel = DataParallel{};
  plan.data_parallel->shards = false;
  const Expected expected = OnOneRank(true, true, {0, 1});
  RunRanks("dp_replicate=2,tp=2", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    auto sharded = Parallelize(net, plan, mesh);
    SetFactors(sharded.applied());
    const at::Tensor made = sharded.forward(Ids(mesh.coordinate(MeshAxis::kDpReplicate)));
    (made * made).sum().backward();
    ExpectGradients(sharded.applied(), expected, 0.5);
    ExpectPredicted(sharded.applied(), mesh.rank(), {2, 5});
  });
}

TEST_CASE("fsdp shards factors with the units of their modules, and reduces the gradients of factors alone") {
  for (const char* shape : {"dp_shard=2", "dp_shard=2,tp=2", "dp_replicate=2,dp_shard=2"}) {
    for (const bool recompute : {false, true}) {
      INFO(shape << (recompute ? " recompute" : ""));
      Plan bare = RulesWith(Layout::Replicate());
      bare.data_parallel.emplace().wrap = {{"layer_*"}};
      if (recompute) bare.recompute.push_back({{{"layer_*"}}, false, Recomputed::Matmuls::kNone, {}, {}});
      // One unit without an adapter, and the root.
      const Plan plan = Adapted(bare, "layer_{0,2}.{up,down}");
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < (std::string(shape).find("replicate") == std::string::npos ? 2 : 4); ++i)
        rows.push_back(i);
      Expected expected = OnOneRank(true, true, rows, {0, 2});
      RunRanks(shape, [&](DeviceMesh& mesh) {
        const CollectiveCounts without = CountsOfStep(bare, mesh);
        Net net = MakeNet({});
        auto sharded = Parallelize(net, plan, mesh);
        SetFactors(sharded.applied());
        const at::Tensor made =
            sharded.forward(Ids(mesh.coordinate(MeshAxis::kDpReplicate) * 2 + mesh.coordinate(MeshAxis::kDpShard)));
        (made * made).sum().backward();
        ExpectGradients(sharded.applied(), expected, 1 / static_cast<double>(rows.size()));
        ExpectPredicted(sharded.applied(), mesh.rank(), {2, 5});
        const CollectiveCounts with = sharded.applied().counts();
        const auto of = [](const CollectiveCounts& counts, Direction direction, CollectiveKind kind) {
          return counts.of(direction, kind);
        };
        Expect(of(with, Direction::kForward, CollectiveKind::kAllGather).count ==
                   of(without, Direction::kForward, CollectiveKind::kAllGather).count,
               "a unit has one gather, with its factors");
        const CollectiveCount reduced = of(with, Direction::kBackward, CollectiveKind::kReduceScatter);
        Expect(reduced.count == 2, "only the units of adapted modules reduce gradients");
        Expect(reduced.bytes < of(without, Direction::kBackward, CollectiveKind::kReduceScatter).bytes / 2,
               "the gradients of the frozen parameters are not reduced");
      });
    }
  }
}

TEST_CASE("precision applies to factors as to the weight, with and without fsdp") {
  for (const bool fsdp : {false, true}) {
    INFO((fsdp ? "fsdp" : "one dp rank"));
    Plan plan = Adapted(RulesWith(Layout::Replicate()), "layer_*.{up,down}");
    plan.precision.emplace().parameters = "float32";
    plan.precision->outputs = "float64";
    if (fsdp) plan.data_parallel.emplace().wrap = {{"layer_*"}};
    const Expected expected = OnOneRank(true, true, fsdp ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0});
    RunRanks(fsdp ? "dp_shard=2,tp=2" : "tp=2", [&](DeviceMesh& mesh) {
      Net net = MakeNet({});
      auto sharded = Parallelize(net, plan, mesh);
      SetFactors(sharded.applied());
      const int64_t row = mesh.coordinate(MeshAxis::kDpShard);
      const at::Tensor made = sharded.forward(Ids(row));
      const at::Tensor want = expected.outputs[static_cast<size_t>(row)];
      Expect(made.scalar_type() == torch::kFloat64 && !made.equal(want), "it was computed in another dtype");
      Expect(at::allclose(made.detach(), want, 1e-4, 1e-4), "the outputs");
      (made * made).sum().backward();
      for (const LiveParameter& parameter : sharded.applied().parameters()) {
        const auto found = expected.gradients.find(parameter.path);
        if (found == expected.gradients.end()) continue;
        const at::Tensor full = SliceShard(
            found->second / (fsdp ? 2 : 1),
            LocalIntervals(parameter.shape, parameter.placement, sharded.applied().plan().mesh, mesh.rank()));
        const at::Tensor gradient = parameter.tensor.grad();
        Expect(gradient.defined() && gradient.scalar_type() == torch::kFloat64,
               parameter.path + " is stored in float64");
        Expect((gradient - full).abs().max().item<double>() <= 1e-4 * found->second.abs().max().item<double>(),
               "the gradient of " + parameter.path);
      }
      ExpectPredicted(sharded.applied(), mesh.rank(), {2, 5});
    });
  }
}

TEST_CASE("a 16-bit weight has factors in float32, and the output keeps the dtype of the weight") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    net->to(torch::kBFloat16);
    Plan plan = Adapted(RulesWith(Layout::Replicate()), "layer_*.up");
    Adapter declared = plan.adapters.front();
    declared.modules = {{"layer_*.down"}};
    declared.dtype = "float64";
    plan.adapters.push_back(declared);
    auto sharded = Parallelize(net, plan, mesh);
    const at::Tensor made = sharded.forward(Ids(0));
    Expect(made.scalar_type() == torch::kBFloat16, "the output has the dtype of the weights");
    made.sum().backward();
    for (const LiveParameter& parameter : sharded.applied().parameters()) {
      if (parameter.path.find(".lora_") == std::string::npos) continue;
      const auto want = parameter.path.find(".up.") == std::string::npos ? torch::kFloat64 : torch::kFloat32;
      Expect(parameter.tensor.scalar_type() == want, "the dtype of " + parameter.path);
      Expect(parameter.tensor.grad().defined() && parameter.tensor.grad().scalar_type() == want,
             "the gradient of " + parameter.path);
    }
  });
}

TEST_CASE("the plan's first adapter is active, and others are neither computed with nor trained") {
  Plan plan = Adapted(RulesWith(Layout::Replicate()), "layer_*.up");
  Adapter other = plan.adapters.front();
  other.name = "other";
  plan.adapters.push_back(other);
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    auto sharded = Parallelize(net, plan, mesh);
    SetFactors(sharded.applied());
    const Expected expected = OnOneRank(true, false, {0});
    const at::Tensor made = sharded.forward(Ids(0));
    Expect(at::allclose(made.detach(), expected.outputs[0], 1e-9, 1e-11), "the other adapter is not computed with");
    (made * made).sum().backward();
    ExpectGradients(sharded.applied(), expected, 1);
    ExpectPredicted(sharded.applied(), mesh.rank(), {2, 5});
  });
}

TEST_CASE("an adapter that cannot become active changes nothing") {
  Plan plan = Adapted(RulesWith(Layout::Replicate()), "layer_*.up");
  Adapter other = plan.adapters.front();
  other.name = "other";
  plan.adapters.push_back(other);
  const Expected expected = OnOneRank(true, false, {0});
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    auto sharded = Parallelize(net, plan, mesh);
    SetFactors(sharded.applied());
    const auto refused = [&](const std::string& name) {
      try {
        sharded.applied().SetActiveAdapter(name);
      } catch (const PlanError& error) {
        return error.diagnostics().front();
      }
      return Diagnostic();
    };
    const Diagnostic unknown = refused("othe");
    Expect(unknown.finding == Finding::kBadArgument, "an unknown adapter");
    Expect(unknown.message == "the plan has no adapter 'othe'" && unknown.help == "did you mean 'other'?",
           unknown.message + unknown.help);
    const Diagnostic differ = refused(mesh.rank() == 0 ? "other" : "default");
    Expect(differ.finding == Finding::kRanksDisagree, "ranks with different adapters");
    Expect(sharded.applied().active_adapter() == "default", "the active adapter is as it was");
    const at::Tensor made = sharded.forward(Ids(0));
    Expect(at::allclose(made.detach(), expected.outputs[0], 1e-9, 1e-11), "the outputs");
    (made * made).sum().backward();
    ExpectGradients(sharded.applied(), expected, 1);
  });
}

TEST_CASE("factors begin equal on every mesh, and change nothing until they are trained") {
  std::map<std::string, at::Tensor> full;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    const at::Tensor before = net(Ids(0));
    auto sharded = Parallelize(net, Adapted(RulesWith(Layout::Replicate()), "layer_*.{up,down}"), mesh);
    ExpectEqual(sharded.forward(Ids(0)).detach(), before.detach(), "the output");
    for (const LiveParameter& one : sharded.applied().parameters()) full[one.path] = one.tensor.detach().clone();
  });
  CHECK(full.at("layer_0.up.lora_B.default").count_nonzero().item<int64_t>() == 0);
  const at::Tensor first = full.at("layer_0.up.lora_A.default");
  CHECK(first.scalar_type() == torch::kFloat64);
  CHECK(first.abs().max().item<double>() <= 1 / std::sqrt(6.0));
  CHECK(first.abs().max().item<double>() > 0.5 / std::sqrt(6.0));
  CHECK_FALSE(first.equal(full.at("layer_1.up.lora_A.default")));
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Net net = MakeNet({});
    auto sharded = Parallelize(net, Adapted(RulesWith(Layout::Replicate()), "layer_*.{up,down}"), mesh);
    for (const LiveParameter& one : sharded.applied().parameters()) {
      ExpectEqual(one.tensor.detach(),
                  SliceShard(full.at(one.path),
                             LocalIntervals(one.shape, one.placement, sharded.applied().plan().mesh, mesh.rank())),
                  one.path);
    }
  });
}

// A hookable class that has a weight of two dims and no SetLowRank.
struct OddImpl : torch::nn::Module {
  OddImpl() { weight = register_parameter("weight", torch::ones({4, 4})); }
  at::Tensor forward(const at::Tensor& x) { return x.mm(weight); }
  at::Tensor weight;
};
MOONSHARD_MODULE(Odd);

struct HolderImpl : torch::nn::Module {
  HolderImpl() {
    first = register_module("first", nn::Linear(torch::nn::LinearOptions(4, 4)));
    odd = register_module("odd", Odd());
  }
  at::Tensor forward(const at::Tensor& x) { return odd(first(x)); }
  nn::Linear first = nullptr;
  Odd odd = nullptr;
};
MOONSHARD_MODULE(Holder);

TEST_CASE("a module that cannot have an adapter is refused, and the model is as it was") {
  Style whole;
  whole.name = "whole";
  Plan plan = PlanOfRules("holder", {{"{first,odd}", whole}});
  plan = Adapted(plan, "{first,odd}");
  Holder holder;
  const at::Tensor x = torch::ones({2, 4});
  const at::Tensor before = holder(x);
  const std::vector<RankFailure> failures =
      RunRanksFailing("tp=1", [&](DeviceMesh& mesh) { Parallelize(holder, plan, mesh); });
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].text.find("'odd' does not support an adapter") != std::string::npos);
  CHECK(holder->first->children().empty());
  CHECK(holder->odd->children().empty());
  for (const at::Tensor& parameter : holder->parameters()) CHECK(parameter.requires_grad());
  CHECK(holder(x).equal(before));

  // Also where the adapter of that module is not the active one, but could become it.
  plan.adapters.insert(plan.adapters.begin(), plan.adapters.front());
  plan.adapters[0].modules = {{"first"}};
  plan.adapters[1].name = "other";
  const std::vector<RankFailure> later =
      RunRanksFailing("tp=1", [&](DeviceMesh& mesh) { Parallelize(holder, plan, mesh); });
  REQUIRE(later.size() == 1);
  CHECK(later[0].text.find("'odd' does not support an adapter") != std::string::npos);
  CHECK(holder(x).equal(before));
}

}  // namespace
}  // namespace moonshard::test
