// What must be alike on the ranks of a model, or is refused: values that it begins with, values of its inputs, and
// layouts that no call carries out.
#include <catch2/catch.hpp>

#include <algorithm>

#include <torch/nn/modules/linear.h>

#include "engine/runtime/apply/parallelize.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

Diagnostics ThrownBy(const std::function<void()>& run) {
  try {
    run();
  } catch (const PlanError& error) {
    return error.diagnostics();
  }
  return {};
}

// A net whose parameters differ from rank 0's on `rank` alone, from layer_1 on.
Net NetOfRank(int64_t rank, int64_t odd) {
  Net net = MakeNet({});
  if (rank != odd) return net;
  const torch::NoGradGuard no_grad;
  for (const char* path : {"layer_1.up.bias", "layer_2.scale"}) net->named_parameters()[path].add_(1e-9);
  return net;
}

Plan DataParallelPlan(bool shards) {
  Plan plan = NetRules();
  plan.data_parallel.emplace().shards = shards;
  if (shards) plan.data_parallel->wrap = {{"layer_*"}};
  return plan;
}

TEST_CASE("ranks that begin with other parameters all fail with the first of them") {
  for (const char* mesh_text : {"tp=3", "dp_replicate=3", "dp_replicate=2,tp=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      Net net = NetOfRank(mesh.rank(), 2);
      const Diagnostics thrown = ThrownBy([&] { Parallelize(net, DataParallelPlan(false), mesh); });
      Expect(thrown.size() == 1 && thrown[0].finding == Finding::kInitialValuesDiffer, ToText(thrown));
      Expect(thrown[0].path == "layer_1.up.bias", thrown[0].path);
      Expect(thrown[0].message.find("on rank 2 than") != std::string::npos, thrown[0].message);
      Expect(net->layers[1]->up->weight.size(0) == 10, "full after the refusal");
      Parallelize(NetOfRank(mesh.rank(), -1), DataParallelPlan(false), mesh);
    });
  }
}

TEST_CASE("replicas whose gradients nothing reduces are refused, unless the host accepts it") {
  for (const char* mesh_text : {"dp=2", "dp_replicate=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      const Diagnostics thrown = ThrownBy([&] { Parallelize(MakeNet({}), NetRules(), mesh); });
      Expect(thrown.size() == 1 && thrown[0].finding == Finding::kUnusedAxis, ToText(thrown));
      Expect(thrown[0].severity == Severity::kError, "an error");
      auto model = Parallelize(MakeNet({}), NetRules(), mesh, {.independent_replicas = true});
      const Diagnostics& found = model.applied().plan().findings;
      Expect(found.size() == 1 && found[0].severity == Severity::kWarning, ToText(found));
      Parallelize(MakeNet({}), DataParallelPlan(false), mesh);
    });
  }
}

TEST_CASE("initial = broadcast gives every rank what rank 0 began with, to the bit") {
  for (const char* mesh_text : {"tp=2", "dp=2", "dp_replicate=2,tp=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      const bool units = std::string(mesh_text) == "dp=2";
      ApplyOptions options;
      options.initial = InitialValues::kBroadcast;
      auto odd =
          Parallelize(NetOfRank(mesh.rank(), mesh.shape().world_size() - 1), DataParallelPlan(units), mesh, options);
      auto like_rank_0 = Parallelize(NetOfRank(mesh.rank(), -1), DataParallelPlan(units), mesh);
      const std::vector<at::Tensor> want = like_rank_0.parameters();
      for (size_t i = 0; i < want.size(); ++i) {
        ExpectEqual(odd.parameters()[i].detach(), want[i].detach(), like_rank_0.applied().parameters()[i].path);
      }
    });
  }
}

// x [B, 4] -> [B, 4], without a rule of its own.
struct FieldImpl : torch::nn::Module {
  FieldImpl() {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(4, 8)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(8, 4)));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : parameters()) p.fill_(0.5);
  }
  at::Tensor forward(const at::Tensor& x) { return down(up(x)); }
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
};
MOONSHARD_MODULE(Field);

TEST_CASE("floating-point inputs that differ between ranks of tp are found in every n-th call") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    ApplyOptions options;
    options.check_inputs = 2;
    auto model =
        Parallelize(Field(), PlanOfRules("field", {{"up", ColwiseStyle()}, {"down", RowwiseStyle()}}), mesh, options);
    const at::Tensor x = torch::ones({3, 4});
    const at::Tensor odd = x + static_cast<double>(mesh.rank()) * 1e-3;
    model.forward(x);    // compared
    model.forward(odd);  // not
    const Diagnostics thrown = ThrownBy([&] { model.forward(odd); });
    Expect(!thrown.empty() && thrown[0].finding == Finding::kCollectiveMismatch, ToText(thrown));
    Expect(ToText(thrown).find("Float [3, 4], hash of the values") != std::string::npos, ToText(thrown));
    model.forward(x);
    model.forward(x);
  });
}

struct PlainImpl : torch::nn::Module {
  PlainImpl() {
    fc = register_module("fc", torch::nn::Linear(4, 6));
    head = register_module("head", nn::Linear(torch::nn::LinearOptions(6, 4)));
    for (at::Tensor& p : parameters()) p.data().fill_(0.5);
  }
  at::Tensor forward(const at::Tensor& x) { return head(fc(x)); }
  torch::nn::Linear fc = nullptr;
  nn::Linear head = nullptr;
};

TEST_CASE("a layout for a parameter of a layer without a hook is refused where nothing carries it out") {
  const auto rule_for = [](const std::string& pattern, const Layout& layout) {
    Rule rule;
    rule.pattern = pattern;
    rule.style.name = layout.ToText();
    rule.parameter = layout;
    rule.source = {"plain.lua", 3, 0, 0, ""};
    return rule;
  };
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Plan plan;
    plan.rules = {rule_for("fc.weight", Layout::Shard(0)), rule_for("fc.bias", Layout::Shard(0))};
    auto net = std::make_shared<PlainImpl>();
    const Diagnostics thrown = ThrownBy([&] { ParallelizeModule(*net, plan, mesh); });
    const auto found = std::ranges::find(thrown, Finding::kNotHookable, &Diagnostic::finding);
    Expect(found != thrown.end() && found->path == "fc" && found->where.line == 3, ToText(thrown));
    Expect(net->fc->weight.size(0) == 6, "full after the refusal");
    // Only its gradient is summed: no call need be seen.
    plan.rules = {rule_for("fc.weight", Layout::Shared())};
    ParallelizeModule(*net, plan, mesh);
  });
}

}  // namespace
}  // namespace moonshard::test
