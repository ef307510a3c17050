// The types along ep of an exchange of tokens: recorded models are proven, and what is wrong around an exchange (results
// that are not returned, a gradient that is or is not summed, experts of one rank for the tokens of all) is a fault at
// its module.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/analysis/prove/operator_trace.h"
#include "engine/analysis/prove/type_scope.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

struct OnEp {
  std::string mesh;
  bool sequence_parallel = false;
  std::string sections = "ddp {},";                // of the plan
  std::function<void(CompiledPlan&)> change = {};  // on a mesh with ep
};

ShardedModel LoadOnEp(const std::string& name, const DeviceMesh& mesh, const OnEp& how) {
  const std::filesystem::path folder = SourcePath("tests/parity/" + name);
  const JsonValue config = ReadConfig(folder);
  ShardedModel out;
  {
    const nn::DeferInit defer;
    out.model = MakeCausalLm(config).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*out.model.module).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  inputs.options["exchange"] = true;
  inputs.options["sequence_parallel"] = how.sequence_parallel;
  const std::string family = config.Find("model_type")->AsString();
  const Plan plan =
      EvaluatePlan("return plan { extends \"" + family + "\", " + how.sections + " }", "experts.lua", inputs)
          .ValueOrThrow();
  CompiledPlan compiled = ResolvePlan(std::make_shared<const Plan>(plan), live.tree, mesh.shape()).ValueOrThrow();
  if (how.change && mesh.shape().size(MeshAxis::kEp) > 1) {
    how.change(compiled);
  }
  out.applied = AppliedPlan::Apply(live, std::move(compiled), mesh, {.deferred_type = at::kFloat});
  Expect(LoadCheckpoint(*out.applied, Checkpoint::Open(folder.string()).ValueOrThrow()).empty(),
         "the checkpoint fits without a warning");
  return out;
}

Proof ProveOnEp(const std::string& name, const OnEp& how, int64_t rank) {
  const NamedTensors inputs = ReadTensors(SourcePath("tests/parity/" + name + "/inputs_1.safetensors"));
  // Of the recorded 13, of which the last of four ranks has one: the sharded dim of one element is ambiguous.
  constexpr int64_t kTokens = 12;
  return ProveAtTwoSizes(
      MeshShape::Parse(how.mesh).ValueOrThrow(),
      [&](const DeviceMesh& at, const TypeOptions& options) {
        return ProveStep(LoadOnEp(name, at, how), inputs, options, kTokens);
      },
      {}, rank);
}

TEST_CASE("recorded models of experts are proven on ep") {
  constexpr const char* kFsdp = "fsdp { wrap = { \"model.layers.*\" } },";
  const std::vector<std::pair<OnEp, int64_t>> rows = {
      {{"ep=2"}, 1},
      {{"ep=4"}, 3},
      {{"ep=2,tp=2"}, 3},
      {{"ep=2,tp=2", true}, 3},
      {{"dp_shard=2,ep=2", false, kFsdp}, 3},
      {{"dp=2,ep=2"}, 3},
      {{"dp_shard=2,ep=2,tp=2", true, kFsdp}, 7},
      {{"ep=2", false, "ddp {}, recompute { \"model.layers.*\" },"}, 1},
      {{"ep=2", false, R"(ddp {}, lora { at = "model.layers.*.{mlp,block_sparse_moe}.experts.*.*", rank = 2 },)"}, 1},
  };
  for (const char* name : {"mixtral", "qwen3_moe"}) {
    for (const auto& [how, last] : rows) {
      for (const int64_t rank : {int64_t{0}, last}) {
        const Proof proof = ProveOnEp(name, how, rank);
        INFO(name << " on " << how.mesh << " " << how.sections << (how.sequence_parallel ? " sequence parallel" : "")
                  << ", rank " << rank << "\n"
                  << ToText(proof));
        CHECK(proof.holds());
        CHECK(proof.sizes_compared);
      }
    }
  }
}

void PlaceOnEp(CompiledPlan& plan, const std::string& path, const Layout& layout) {
  const auto m = static_cast<size_t>(plan.tree->Find(path));
  plan.layouts.push_back(plan.LayoutsOf(m));
  for (Placement& placement : plan.layouts.back().params) placement[MeshAxis::kEp] = layout;
  plan.layouts_of[m] = static_cast<uint32_t>(plan.layouts.size()) - 1;
}

// A sum over ep of the gradient of the first parameter of `path`.
void SumOverEp(CompiledPlan& plan, const std::string& path) {
  const auto m = static_cast<size_t>(plan.tree->Find(path));
  ModuleSteps steps = plan.StepsOf(m);
  steps.sums.push_back({.param = 0, .group = {MeshAxis::kEp, plan.mesh.size(MeshAxis::kEp)}});
  plan.steps.push_back(std::move(steps));
  plan.steps_of[m] = static_cast<uint32_t>(plan.steps.size()) - 1;
}

constexpr int64_t kHidden = 8;
constexpr int64_t kSize = 6;  // features of an expert
constexpr int64_t kIds = 24;
constexpr int64_t kTokensOfRow = 12;

// What is wrong around the exchange of a host's own block of experts.
enum class ExpertFault {
  kNone,
  kNotReturned,    // the rows of the experts are added to the tokens of the batch
  kOfOneRank,      // the tokens of the batch go through the first expert of each rank
  kBatchAmong,     // an expert adds a token of the batch to its rows
  kLossOfRows,     // the loss is computed from the experts' rows
  kGradientTwice,  // each rank's gradient of an expert's weight has the terms of all ranks
  kRouterAlone,    // the router's gradient is not summed
  kMixedRows,      // a mean over the rows of all experts of the rank: not known to be wrong
  kOtherExpert,    // the tokens of an expert go through its neighbour: a fault of values
};

struct HostExpertsImpl : torch::nn::Module {
  explicit HostExpertsImpl(ExpertFault f) : fault(f) {
    gate_up_proj = register_parameter("gate_up_proj", at::ones({4, 2 * kSize, kHidden}));
    down_proj = register_parameter("down_proj", at::ones({4, kHidden, kSize}));
  }
  at::Tensor Expert(const at::Tensor& rows, int64_t i) const {
    const std::vector<at::Tensor> parts = at::linear(rows, gate_up_proj[i]).chunk(2, -1);
    return at::linear(at::silu(parts[0]) * parts[1], down_proj[i]);
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights) {
    at::Tensor sum = at::zeros_like(tokens);
    for (int64_t i = 0; i < gate_up_proj.size(0); ++i) {
      const int64_t other = fault == ExpertFault::kOtherExpert ? (i + 1) % gate_up_proj.size(0) : i;
      const at::Tensor places = ids.eq(other).nonzero();
      const at::Tensor token = places.select(1, 0);
      const at::Tensor weight = weights.index({token, places.select(1, 1)}).unsqueeze(-1);
      sum = sum.index_add(0, token, Expert(tokens.index_select(0, token), i) * weight);
    }
    if (fault == ExpertFault::kBatchAmong) sum = sum + batch.narrow(0, 0, 1);
    if (fault == ExpertFault::kMixedRows) sum = sum - sum.mean(0, /*keepdim=*/true);
    rows = sum;
    return sum;
  }
  at::Tensor gate_up_proj, down_proj, batch, rows;
  ExpertFault fault;
};
MOONSHARD_MODULE(HostExperts);

struct HostBlockImpl : torch::nn::Module {
  explicit HostBlockImpl(ExpertFault fault) {
    gate = register_module("gate", nn::Linear(torch::nn::LinearOptions(kHidden, 4).bias(false)));
    experts = register_module("experts", HostExperts(fault));
  }
  at::Tensor forward(const at::Tensor& hidden) {
    const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)});
    const auto [weights, ids] = at::topk(at::softmax(gate(tokens), -1), 1);
    experts->batch = tokens;
    at::Tensor out = experts(tokens, ids, weights);
    if (experts->fault == ExpertFault::kNotReturned) out = out + experts->rows.narrow(0, 0, out.size(0));
    if (experts->fault == ExpertFault::kOfOneRank) out = out + experts->Expert(tokens, 0);
    return out.view(hidden.sizes());
  }
  nn::Linear gate = nullptr;
  HostExperts experts = nullptr;
};
MOONSHARD_MODULE(HostBlock);

struct ExpertNetImpl : torch::nn::Module {
  explicit ExpertNetImpl(ExpertFault fault) {
    embed = register_module("embed", nn::Embedding(torch::nn::EmbeddingOptions(kIds, kHidden)));
    block = register_module("block", HostBlock(fault));
    head = register_module("head", nn::Linear(torch::nn::LinearOptions(kHidden, kIds).bias(false)));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor hidden = embed(ids);
    return head(hidden + block(hidden));
  }
  nn::Embedding embed = nullptr;
  HostBlock block = nullptr;
  nn::Linear head = nullptr;
};
MOONSHARD_MODULE(ExpertNet);

struct HostStep {
  Proof proof;
  std::shared_ptr<AppliedPlan> applied;
};

HostStep StepOfHost(const DeviceMesh& mesh, ExpertFault fault, const TypeOptions& options) {
  ExpertNet net(fault);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      const at::Tensor values = at::arange(parameter.numel(), at::TensorOptions(at::kDouble)).mul(0.7).sin();
      parameter.set_data(values.view(parameter.sizes()));
    }
  }
  const LiveTree live = ReadLiveTree(*net).ValueOrThrow();
  PlanInputs inputs;
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  const Plan plan = EvaluatePlan(R"(
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local stream <const> = transformer.stream { sequence_parallel = false, loss_parallel = false, stable = false }
return plan {
  at("embed", vocab_rowwise { output = stream.residual }),
  experts.block("block", stream, { size = 6, parallel = "exchange", per_token = 1, features = 8 }),
  at("head", colwise { input = stream.residual, output = replicate }),
  ddp {},
})",
                                 "host.lua", inputs)
                        .ValueOrThrow();
  CompiledPlan compiled = ResolvePlan(std::make_shared<const Plan>(plan), live.tree, mesh.shape()).ValueOrThrow();
  if (fault == ExpertFault::kGradientTwice) SumOverEp(compiled, "block.experts");
  if (fault == ExpertFault::kRouterAlone) {
    PlaceOnEp(compiled, "block.gate", Layout::Replicate());
    CompileSteps(compiled);
  }
  HostStep out;
  out.applied = AppliedPlan::Apply(live, std::move(compiled), mesh, {});
  const at::Tensor ids = at::arange(2 * kTokensOfRow).remainder(kIds).view({2, kTokensOfRow});
  TypeScope scope(*out.applied, options);
  try {
    const at::Tensor logits = net->forward(ids);
    at::Tensor loss = torch::nn::functional::cross_entropy(logits.narrow(1, 0, kTokensOfRow - 1).flatten(0, 1),
                                                           ids.narrow(1, 1, kTokensOfRow - 1).flatten());
    if (fault == ExpertFault::kLossOfRows) loss = net->block->experts->rows[0][0];
    scope.Loss(loss);
    loss.backward();
  } catch (const c10::Error& error) {
    scope.Stopped(error.what_without_backtrace());
  }
  out.proof = scope.Finish();
  return out;
}

Proof ProveHostOnEp(const std::string& mesh_text, ExpertFault fault, int64_t rank) {
  return ProveAtTwoSizes(
      MeshShape::Parse(mesh_text).ValueOrThrow(),
      [&](const DeviceMesh& mesh, const TypeOptions& options) { return StepOfHost(mesh, fault, options).proof; }, {},
      rank);
}

// `fault` on every rank of ep against the step of one rank without one.
OperatorDifferences OperatorsOfHost(const DeviceMesh& mesh, ExpertFault fault) {
  OperatorTrace here;
  OperatorTrace alone;
  TypeOptions options;
  options.observer = alone.Recorder();
  StepOfHost(DeviceMesh::Recording(MeshShape(), 0, at::kCPU, /*as_if_tp=*/true), ExpertFault::kNone, options);
  options.observer = here.Recorder();
  const HostStep step = StepOfHost(mesh, fault, options);
  constexpr double kTolerance = 1e-9;
  return CompareOperators(here, alone, step.applied->group(MeshAxis::kEp), 0, kTolerance, /*zigzag=*/false,
                          /*same_rows=*/true);
}

TEST_CASE("a host's own experts are proven on ep") {
  for (const auto& [mesh, last] :
       {std::pair("ep=2", 1), std::pair("ep=4", 3), std::pair("ep=2,tp=2", 3), std::pair("dp=2,ep=2", 3)}) {
    for (const int64_t rank : {0, last}) {
      const Proof proof = ProveHostOnEp(mesh, ExpertFault::kNone, rank);
      INFO(mesh << ", rank " << rank << "\n" << ToText(proof));
      CHECK(proof.holds());
      CHECK(proof.sizes_compared);
    }
  }
}

TEST_CASE("what is wrong around an exchange of tokens is a fault at its module, on every rank") {
  const std::vector<std::tuple<ExpertFault, std::string, bool>> rows = {
      {ExpertFault::kNotReturned, "block", false},          {ExpertFault::kOfOneRank, "block", false},
      {ExpertFault::kBatchAmong, "block.experts", false},   {ExpertFault::kLossOfRows, "", false},
      {ExpertFault::kGradientTwice, "block.experts", true}, {ExpertFault::kRouterAlone, "block.gate", true},
  };
  for (const auto& [fault, path, backward] : rows) {
    for (const char* mesh : {"ep=2", "ep=2,tp=2", "dp=2,ep=2"}) {
      for (const int64_t rank : {0, 1}) {
        const Proof proof = ProveHostOnEp(mesh, fault, rank);
        INFO(static_cast<int>(fault) << " on " << mesh << ", rank " << rank << "\n" << ToText(proof));
        CHECK_FALSE(proof.holds());
        REQUIRE_FALSE(proof.faults.empty());
        CHECK(proof.faults.front().path.starts_with(path));
        CHECK(proof.faults.front().backward == backward);
        CHECK(std::ranges::count(proof.faults, MeshAxis::kEp, &TypeFault::axis) > 0);
      }
    }
  }
}

TEST_CASE("an operator that mixes the rows of experts is unproven") {
  for (const char* mesh : {"ep=2", "dp=2,ep=2"}) {
    const Proof proof = ProveHostOnEp(mesh, ExpertFault::kMixedRows, 1);
    INFO(ToText(proof));
    CHECK_FALSE(proof.holds());
    CHECK(proof.faults.empty());
    CHECK(proof.unproven.contains("aten::mean.dim: rows of several experts may be mixed"));
  }
}

TEST_CASE("a token that another expert computes is found behind the experts") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    const OperatorDifferences right = OperatorsOfHost(mesh, ExpertFault::kNone);
    Expect(!right.first, "an operator differs without a fault");
    Expect(right.compared > 20, "few operators were compared");
    Expect(right.left_out_routed > 0, "no result of an expert was left out");
    const OperatorDifferences wrong = OperatorsOfHost(mesh, ExpertFault::kOtherExpert);
    // The residual addition of the net is the first operator that has the results of the experts.
    Expect(wrong.first.has_value() && wrong.first->name == "aten::add.Tensor" && !wrong.first->backward,
           "the first operator that differs is " + (wrong.first ? wrong.first->name : std::string("none")));
  });
}

}  // namespace
}  // namespace moonshard::test
