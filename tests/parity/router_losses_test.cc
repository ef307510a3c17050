// The losses of routers (router_losses.h) on thread ranks: recorded models with output_router_logits against what
// transformers computed, in float64 against one rank, and against differences of the loss.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/moe.h"
#include "engine/models/router_losses.h"
#include "engine/plan/compile/cost.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/parity/setup.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

struct RouterSetup {
  std::string checkpoint;  // a directory of tests/parity/routers
  std::string mesh;
  std::vector<std::string> options = {};  // of the shipped plan, that are true
  std::string sections = {};              // of the plan, beside the shipped one's
  int64_t micros = 1;
  std::string plan = {};  // in place of the shipped one
  std::string context = "ulysses";
  std::string Name() const {
    std::string out = checkpoint + " " + mesh;
    for (const std::string& option : options) out += " " + option;
    if (context != "ulysses") out += " " + context;
    return out + " " + sections + (micros > 1 ? " in " + std::to_string(micros) + " micro-batches" : "");
  }
};

const std::string kLayersRecomputed = R"(recompute { "model.layers.*" })";

std::filesystem::path DirectoryOfRouters(const std::string& name) { return SourcePath("tests/parity/routers/" + name); }

// `independent`: no section reduces gradients over data-parallel ranks.
ShardedModel LoadWithRouters(const RouterSetup& setup, const DeviceMesh& mesh, std::optional<c10::ScalarType> dtype,
                             bool independent = false) {
  const JsonValue config = ReadConfig(DirectoryOfRouters(setup.checkpoint));
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
  for (const std::string& option : setup.options) inputs.options[option] = true;
  if (mesh.shape().size(MeshAxis::kEp) > 1) inputs.options["exchange"] = true;
  if (mesh.shape().size(MeshAxis::kCp) > 1) inputs.options["context"] = setup.context;
  const std::string family = std::filesystem::path(SelectPlan(config).ValueOrThrow()).stem().string();
  const std::string extended = "return plan { extends \"" + family + "\", " + setup.sections + " }";
  Plan plan = EvaluatePlan(setup.plan.empty() ? extended : setup.plan, "routers.lua", inputs).ValueOrThrow();
  if (independent) plan.data_parallel.reset();
  out.applied =
      ParallelizeModule(*out.model.module, plan, mesh, {.deferred_type = dtype, .independent_replicas = independent});
  Expect(LoadCheckpoint(*out.applied, Checkpoint::Open(DirectoryOfRouters(setup.checkpoint).string()).ValueOrThrow())
             .empty(),
         "the checkpoint fits without a warning");
  out.model.routers->Bind(*out.model.module, *out.applied);
  return out;
}

// The rows of this rank in a micro-batch, which has consecutive rows of the batch on all ranks.
at::Tensor RowsOfRank(const at::Tensor& all, const DeviceMesh& mesh, int64_t micros = 1, int64_t micro = 0) {
  const int64_t ranks = mesh.shape().data_ranks();
  Expect(all.size(0) % (ranks * micros) == 0, "the rows are not shared evenly");
  const int64_t rows = all.size(0) / (ranks * micros);
  return all.narrow(0, (micro * ranks + mesh.shape().DataCoordinate(mesh.rank())) * rows, rows);
}

int64_t LabelsIn(const at::Tensor& labels) { return labels.slice(1, 1).ne(-100).sum().item<int64_t>(); }

// The cross-entropy of the rows as a part of the mean over `counted` labels, times the number of data-parallel ranks,
// whose mean the plan takes.
at::Tensor PartOfMean(const at::Tensor& logits, const at::Tensor& labels, int64_t counted, const DeviceMesh& mesh) {
  const at::Tensor wanted = labels.slice(1, 1).reshape(-1);
  const at::Tensor given = logits.slice(1, 0, logits.size(1) - 1).flatten(0, 1);
  return at::cross_entropy_loss(given, wanted, {}, at::Reduction::Sum, -100) *
         (static_cast<double>(mesh.shape().data_ranks()) / static_cast<double>(counted));
}

// What the loss communicates: one sum of 2 E + 2 numbers over the ranks that have other rows.
void ExpectOneSum(const RouterLosses& losses, const DeviceMesh& mesh, int64_t experts) {
  CollectiveCounts want;
  const bool alone = mesh.shape().data_ranks() * mesh.shape().size(MeshAxis::kCp) == 1;
  if (!alone) want.Add(Direction::kForward, CollectiveKind::kAllReduce, (2 * experts + 2) * 8);
  Expect(losses.counts() == want, "one all-reduce of the sums");
}

// The model runs what explain predicts, with and without the losses.
void ExpectModelAsPredicted(const AppliedPlan& applied, const at::Tensor& ids) {
  const PlanTotals totals = TotalsOf(applied.plan(), applied.mesh().rank(), Tokens{ids.size(0), ids.size(1)});
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      const int64_t got = applied.counts().of(direction, kind).count;
      const int64_t want = totals.collectives.of(direction, kind).count;
      Expect(got == want, std::string(ToString(kind)) + " " + ToString(direction) + ": " + std::to_string(got) +
                              " ran, " + std::to_string(want) + " were predicted");
    }
  }
}

int64_t ExpertsIn(const std::string& checkpoint) {
  const JsonValue config = ReadConfig(DirectoryOfRouters(checkpoint));
  const JsonValue* local = config.Find("num_local_experts");
  return (local != nullptr ? local : config.Find("num_experts"))->AsInt();
}

std::vector<RouterSetup> SetupsOfRouters(const std::string& checkpoint) {
  const std::string layers = R"(fsdp { wrap = "model.layers.*", reshard = true })";
  return {
      {checkpoint, "tp=1"},
      {checkpoint, "tp=1", {}, kLayersRecomputed},
      {checkpoint, "tp=2"},
      {checkpoint, "tp=4", {"sequence_parallel"}},
      {checkpoint, "tp=2", {"expert_parallel"}},
      {checkpoint, "tp=2", {"stable"}},
      {checkpoint, "tp=2", {"sequence_parallel", "expert_parallel"}, kLayersRecomputed},
      {checkpoint, "dp_shard=2", {}, layers},
      {checkpoint, "dp_shard=2", {}, "ddp {}"},
      {checkpoint, "dp_shard=2", {}, layers + ", " + kLayersRecomputed},
      {checkpoint, "dp_replicate=2,tp=2", {"sequence_parallel"}, "ddp {}"},
      {checkpoint, "ep=2"},
      {checkpoint, "ep=2,tp=2"},
      {checkpoint, "ep=2,cp=2"},
      {checkpoint, "ep=2,cp=2", {}, "ddp {}, " + kLayersRecomputed},
      {checkpoint, "dp_shard=2,ep=2", {}, layers},
      {checkpoint, "cp=4"},  // chunks of 4, 4, 4 and 1 of 13 tokens
      {checkpoint, "cp=2,tp=2", {"sequence_parallel"}, kLayersRecomputed},
      {checkpoint, "cp=2,tp=2", {"expert_parallel"}},
      {checkpoint, "dp_shard=2,cp=2", {}, "ddp {}"},
  };
}

TEST_CASE("the losses of routers give the numbers of transformers") {
  for (const char* checkpoint : {"mixtral", "qwen3_moe", "qwen2_moe"}) {
    for (const RouterSetup& setup : SetupsOfRouters(checkpoint)) {
      DYNAMIC_SECTION(setup.Name()) {
        const std::filesystem::path folder = DirectoryOfRouters(checkpoint);
        double loss = 0;
        double worst_logits = 0;
        std::pair<double, std::string> worst_gradient = {0, ""};
        double want = 0;
        std::mutex mutex;
        for (const std::string suffix : {"_1", "_padded"}) {
          if (!std::filesystem::exists(folder / ("inputs" + suffix + ".safetensors"))) continue;
          const NamedTensors inputs = ReadTensors(folder / ("inputs" + suffix + ".safetensors"));
          const NamedTensors expected = ReadTensors(folder / ("expected" + suffix + ".safetensors"));
          want += expected.at("loss").item<double>();
          RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
            const ShardedModel sharded = LoadWithRouters(setup, mesh, std::nullopt);
            const auto own = [&](const char* name) -> std::optional<at::Tensor> {
              const auto found = inputs.find(name);
              return found == inputs.end() ? std::nullopt : std::optional(RowsOfRank(found->second, mesh));
            };
            const std::optional<at::Tensor> mask = own("attention_mask");
            const at::Tensor logits = sharded.model.forward(*own("input_ids"), mask, own("position_ids"));
            const at::Tensor of_labels = PartOfMean(logits, *own("labels"), LabelsIn(inputs.at("labels")), mesh);
            const at::Tensor of_routers = sharded.model.routers->Loss().value();
            const at::Tensor total = of_labels + of_routers;
            Expect(of_routers.scalar_type() == at::kFloat, "in the dtype of the probabilities");
            total.backward();
            ExpectOneSum(*sharded.model.routers, mesh, ExpertsIn(checkpoint));
            ExpectModelAsPredicted(*sharded.applied, *own("input_ids"));
            const at::Tensor shown = mask ? mask->unsqueeze(-1) : at::ones({1});
            const double error =
                RelativeError(logits.detach() * shown, RowsOfRank(expected.at("logits"), mesh) * shown);
            for (const LiveParameter& parameter : sharded.applied->parameters()) {
              const at::Tensor full = GatherFull(*sharded.applied, parameter, parameter.tensor.grad());
              const std::pair of = {RelativeError(full, expected.at("grad." + parameter.path)), parameter.path};
              const std::lock_guard lock(mutex);
              worst_gradient = std::max(worst_gradient, of);
            }
            const std::lock_guard lock(mutex);
            worst_logits = std::max(worst_logits, error);
            loss += total.item<double>() / static_cast<double>(mesh.shape().world_size());
          });
        }
        const double bound = RecordedBound(folder / "expected_1.safetensors");
        CHECK(bound < 2e-4);
        INFO("gradient of " << worst_gradient.second);
        CHECK(worst_logits <= bound);
        CHECK(worst_gradient.first <= bound);
        CHECK(std::abs(loss - want) <= bound * want);
      }
    }
  }
}

constexpr RouterCoefficients kBothLosses = {.balance = 0.7, .z = 0.2};
constexpr int64_t kRoutedRows = 12;
constexpr int64_t kRoutedTokens = 13;

struct RoutedStep {
  double loss = 0;
  NamedTensors gradients;  // full
};

// One step in float64 on rows with padding, which the data-parallel ranks and micro-batches share.
RoutedStep StepWithRouters(const RouterSetup& setup, const DeviceMesh& mesh,
                           const std::optional<RouterCoefficients>& coefficients = kBothLosses,
                           const std::function<void(ShardedModel&)>& change = {}) {
  ShardedModel sharded = LoadWithRouters(setup, mesh, at::kDouble);
  if (change) change(sharded);
  RouterLosses& routers = *sharded.model.routers;
  if (coefficients) routers.SetCoefficients(*coefficients);
  const at::Tensor ids =
      (at::arange(kRoutedRows * kRoutedTokens) * 7 + 3).remainder(24).view({kRoutedRows, kRoutedTokens});
  at::Tensor mask = at::ones_like(ids);
  mask.slice(0, 0, 7).slice(1, 0, 5) = 0;
  mask.slice(0, 3, 5).slice(1, 0, 9) = 0;
  const at::Tensor labels = ids.masked_fill(mask == 0, -100);
  RoutedStep out;
  for (int64_t micro = 0; micro < setup.micros; ++micro) {
    sharded.applied->SetGradientSync(micro + 1 == setup.micros);
    const auto own = [&](const at::Tensor& all) { return RowsOfRank(all, mesh, setup.micros, micro); };
    const at::Tensor logits = sharded.model.forward(own(ids), own(mask), std::nullopt);
    at::Tensor loss = PartOfMean(logits, own(labels), LabelsIn(labels), mesh);
    if (coefficients) loss = loss + *routers.Loss() / setup.micros;
    loss.backward();
    out.loss += loss.item<double>();
  }
  for (const LiveParameter& parameter : sharded.applied->parameters()) {
    if (!parameter.tensor.requires_grad()) continue;
    out.gradients[parameter.path] = GatherFull(*sharded.applied, parameter, parameter.tensor.grad());
  }
  return out;
}

RoutedStep RoutedAlone(const RouterSetup& setup, const std::optional<RouterCoefficients>& coefficients = kBothLosses) {
  RoutedStep out;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    out = StepWithRouters({setup.checkpoint, "tp=1", {}, {}, setup.micros}, mesh, coefficients);
  });
  return out;
}

// The largest relative error of the loss or a gradient on the mesh.
std::pair<double, std::string> WorstOf(const RouterSetup& setup, const RoutedStep& want,
                                       const std::function<void(ShardedModel&)>& change = {}) {
  std::mutex mutex;
  double loss = 0;
  std::pair<double, std::string> worst = {0, ""};
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    const RoutedStep got = StepWithRouters(setup, mesh, kBothLosses, change);
    const std::lock_guard lock(mutex);
    loss += got.loss / static_cast<double>(mesh.shape().world_size());
    Expect(got.gradients.size() == want.gradients.size(), "another number of parameters");
    for (const auto& [path, gradient] : got.gradients) {
      worst = std::max(worst, {RelativeError(gradient, want.gradients.at(path)), path});
    }
  });
  return std::max(worst, {std::abs(loss - want.loss) / want.loss, "the loss"});
}

TEST_CASE("the losses of routers in float64 give the numbers of one rank", "[float64]") {
  for (const char* checkpoint : {"mixtral", "qwen3_moe", "qwen2_moe"}) {
    std::vector<RouterSetup> setups = SetupsOfRouters(checkpoint);
    setups.push_back({checkpoint, "dp_shard=3,ep=2"});
    setups.push_back({checkpoint, "tp=2", {}, kLayersRecomputed, 3});
    setups.push_back({checkpoint, "dp_shard=2,cp=2", {}, R"(fsdp { wrap = "model.layers.*", reshard = true })", 2});
    setups.push_back({checkpoint, "ep=2", {}, "ddp {}, " + kLayersRecomputed, 3});
    setups.push_back(
        {checkpoint, "tp=2", {}, R"(recompute { "model.layers.*", keep = { "attention", "every_second_matmul" } })"});
    if (std::string(checkpoint) == "mixtral") {
      setups.push_back({checkpoint, "tp=2", {}, R"(recompute { "model.layers.*.block_sparse_moe" })"});
      for (const char* mesh : {"tp=1", "tp=2", "cp=2"}) {
        setups.push_back(
            {checkpoint,
             mesh,
             {},
             R"(recompute { "model.layers.*", keep_modules = "model.layers.*.block_sparse_moe", keep = { "matmul" } })"});
      }
      for (const char* mesh : {"cp=4", "ep=2,cp=2"}) setups.push_back({checkpoint, mesh, {}, {}, 1, {}, "ring"});
      setups.push_back({checkpoint, "cp=2x2", {}, {}, 1, {}, "ulysses_ring"});
      // Scores that are gathered: the layout of the result counts, and not that of the weight.
      setups.push_back({checkpoint,
                        "tp=2",
                        {},
                        R"(at("model.layers.*.block_sparse_moe.gate", colwise { input = shared, output = shared }))"});
    }
    std::map<int64_t, RoutedStep> alone;
    for (const RouterSetup& setup : setups) {
      DYNAMIC_SECTION(setup.Name()) {
        if (!alone.contains(setup.micros)) alone[setup.micros] = RoutedAlone(setup);
        const auto [error, name] = WorstOf(setup, alone[setup.micros]);
        INFO(name);
        CHECK(error <= 1e-9);
      }
    }
  }
}

TEST_CASE("a router whose ranks of tp all add the full gradient is found") {
  const RouterSetup setup{"mixtral", "tp=2"};
  const auto [error, name] = WorstOf(setup, RoutedAlone(setup), [](ShardedModel& sharded) {
    for (const auto& module : sharded.model.module->modules()) {
      if (auto* block = dynamic_cast<SparseMoeImpl*>(module.get())) block->SetScoreTerms(1);
    }
  });
  CHECK(error > 1e-3);
  CHECK_THAT(name, Catch::Contains("model."));
}

// Each rank then has the losses of its own tokens.
TEST_CASE("sums that are not those of the ranks of cp are found") {
  for (const char* mesh : {"cp=2", "dp_shard=2"}) {
    const RouterSetup setup{"mixtral", mesh, {}, "ddp {}"};
    const auto [error, name] = WorstOf(setup, RoutedAlone(setup), [](ShardedModel& sharded) {
      auto unbound = std::make_shared<RouterLosses>(4, RouterCoefficients());
      for (const auto& module : sharded.model.module->modules()) {
        if (auto* block = dynamic_cast<SparseMoeImpl*>(module.get())) block->SetLosses(unbound, "unbound");
      }
      sharded.model.routers->SetCoefficients({});
      const int64_t cp_ranks = sharded.applied->mesh().shape().size(MeshAxis::kCp);
      const int64_t chunk = (kRoutedTokens + cp_ranks - 1) / cp_ranks;
      const int64_t begin = chunk * sharded.applied->mesh().coordinate(MeshAxis::kCp);
      const auto forward = sharded.model.forward;
      sharded.model.forward = [=](const auto& ids, const auto& /*mask*/, const auto& positions) {
        return unbound->Run(ids.slice(1, begin, begin + chunk), std::nullopt,
                            [&] { return forward(ids, std::nullopt, positions); });
      };
      sharded.model.routers = unbound;
    });
    INFO(mesh);
    CHECK(error > 1e-3);
  }
}

TEST_CASE("independent replicas have the losses of their own rows") {
  double loss = 0;
  NamedTensors want;
  const at::Tensor ids = (at::arange(4 * 13) * 5).remainder(23).view({4, 13});
  for (const std::string mesh_text : {"tp=1", "dp_shard=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      const ShardedModel sharded = LoadWithRouters({"mixtral", mesh_text}, mesh, at::kDouble, /*independent=*/true);
      sharded.model.routers->SetCoefficients(kBothLosses);
      // The second rank is ahead by a forward.
      if (mesh.rank() == 1) {
        sharded.model.forward(ids.narrow(0, 2, 2), std::nullopt, std::nullopt);
        sharded.model.routers->Loss();
        return;
      }
      const at::Tensor sum = sharded.model.forward(ids.narrow(0, 0, 2), std::nullopt, std::nullopt).sum();
      const at::Tensor of_routers = *sharded.model.routers->Loss();
      (sum + of_routers).backward();
      if (want.empty()) loss = of_routers.item<double>();
      Expect(loss == of_routers.item<double>(), "the loss of the first two rows");
      Expect(sharded.model.routers->counts() == CollectiveCounts{}, "nothing is communicated");
      for (const LiveParameter& parameter : sharded.applied->parameters()) {
        if (mesh_text == "tp=1") want[parameter.path] = parameter.tensor.grad();
        ExpectEqual(parameter.tensor.grad(), want.at(parameter.path), parameter.path);
      }
    });
  }
}

// The loss of the routers alone on one rank, for a changed weight of a gate.
double LossWith(const ShardedModel& sharded, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  sharded.model.forward(ids, std::nullopt, std::nullopt);
  return sharded.model.routers->Loss()->item<double>();
}

TEST_CASE("the gradient of the losses of routers is their difference quotient") {
  for (const RouterCoefficients coefficients : {RouterCoefficients{.balance = 1}, RouterCoefficients{.z = 1}}) {
    RunRanks("tp=1", [&](DeviceMesh& mesh) {
      const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1"}, mesh, at::kDouble);
      sharded.model.routers->SetCoefficients(coefficients);
      const at::Tensor ids = at::arange(26).remainder(24).view({2, 13});
      const at::Tensor logits = sharded.model.forward(ids, std::nullopt, std::nullopt);
      (logits.sum() * 0 + *sharded.model.routers->Loss()).backward();
      for (const LiveParameter& parameter : sharded.applied->parameters()) {
        // Behind the last router nothing changes its scores.
        const bool after = parameter.path == "lm_head.weight" || parameter.path == "model.norm.weight" ||
                           parameter.path.starts_with("model.layers.1.block_sparse_moe.experts");
        double* const value = parameter.tensor.data_ptr<double>() + parameter.tensor.numel() / 2;
        const double gradient = parameter.tensor.grad().reshape(-1)[parameter.tensor.numel() / 2].item<double>();
        constexpr double kStep = 1e-6;
        *value += kStep;
        const double above = LossWith(sharded, ids);
        *value -= 2 * kStep;
        const double below = LossWith(sharded, ids);
        *value += kStep;
        const double quotient = (above - below) / (2 * kStep);
        Expect(std::abs(quotient - gradient) <= 1e-8 + 1e-6 * std::abs(gradient),
               parameter.path + ": " + std::to_string(gradient) + ", and the quotient " + std::to_string(quotient));
        Expect(!after || gradient == 0, parameter.path + " changes no scores");
      }
    });
  }
}

at::Tensor TokensOf(int64_t rows, int64_t length) { return at::zeros({rows, length}, at::kLong); }

// A forward of one layer with equal scores.
void RunOneLayer(RouterLosses& losses, const at::Tensor& ids, const std::optional<at::Tensor>& mask, int64_t rows) {
  losses.Run(ids, mask, [&] {
    const at::Tensor scores = at::ones({rows, 2});
    losses.Count("layer.gate", scores, at::softmax(scores, -1), at::zeros({rows, 1}, at::kLong));
    return at::ones({});
  });
}

// Scores by hand: two layers of a router with two experts, one of two choices, of which the second row is padding.
TEST_CASE("the rows of all layers are pooled, and padding is left out") {
  RouterLosses losses(2, {.balance = 10, .z = 1});
  const double third = std::log(3.0);
  losses.Run(TokensOf(1, 3), at::tensor({1, 0, 1}, at::kLong).view({1, 3}), [&] {
    for (const std::vector<double>& numbers :
         {std::vector<double>{third, 0, 0, 50, 0, third}, {third, 0, 50, 0, third, 0}}) {
      const at::Tensor scores = at::tensor(numbers, at::kDouble).view({3, 2});
      losses.Count("gate", scores, at::softmax(scores, -1), scores.argmax(-1, /*keepdim=*/true));
    }
    return at::ones({});
  });
  // f = (3, 1) / 4, P = (0.75 + 0.25 + 0.75 + 0.75, ...) / 4 = (2.5, 1.5) / 4, l = log 4 in each row.
  const double balance = 10 * 2 * (3 * 2.5 + 1 * 1.5) / 16;
  CHECK(losses.Loss()->item<double>() == Approx(balance + std::log(4.0) * std::log(4.0)).epsilon(1e-14));
}

TEST_CASE("rows that are all padding have no loss") {
  RouterLosses losses(2, {.balance = 1, .z = 1});
  RunOneLayer(losses, TokensOf(1, 2), at::zeros({1, 2}, at::kLong), 2);
  CHECK(losses.Loss()->item<double>() == 0);
}

TEST_CASE("without coefficients, and where the loss is not taken, the gradient is that of the outputs") {
  for (const std::string& sections : {std::string(), kLayersRecomputed}) {
    RunRanks("tp=1", [&](DeviceMesh& mesh) {
      const RouterSetup setup{"mixtral", "tp=1", {}, sections};
      ShardedModel sharded = LoadWithRouters(setup, mesh, at::kDouble);
      const at::Tensor ids = at::arange(26).remainder(24).view({2, 13});
      NamedTensors want;
      for (const bool counts : {false, true}) {
        sharded.model.routers->SetCoefficients(counts ? kBothLosses : RouterCoefficients());
        sharded.model.module->zero_grad();
        const at::Tensor logits = sharded.model.forward(ids, std::nullopt, std::nullopt);
        Expect(counts || !sharded.model.routers->Loss(), "no coefficient, no loss");
        logits.pow(2).sum().backward();
        for (const LiveParameter& parameter : sharded.applied->parameters()) {
          const at::Tensor gradient = parameter.tensor.grad().clone();
          if (!counts) want[parameter.path] = gradient;
          ExpectEqual(gradient, want.at(parameter.path), parameter.path);
        }
      }
    });
  }
}

TEST_CASE("a taken loss that is not differentiated is found") {
  for (const std::string& sections : {std::string(), kLayersRecomputed}) {
    RunRanks("tp=1", [&](DeviceMesh& mesh) {
      const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1", {}, sections}, mesh, std::nullopt);
      const at::Tensor ids = at::arange(26).remainder(24).view({2, 13});
      const at::Tensor logits = sharded.model.forward(ids, std::nullopt, std::nullopt);
      Expect(sharded.model.routers->Loss()->is_same(*sharded.model.routers->Loss()), "taken once");
      std::string text;
      try {
        logits.sum().backward();
      } catch (const PlanError& error) {
        text = error.what();
      }
      Expect(text.find("are not part of the loss that is differentiated") != std::string::npos, "no error: " + text);
      // The next step is not affected.
      const at::Tensor again = sharded.model.forward(ids, std::nullopt, std::nullopt);
      (again.sum() + *sharded.model.routers->Loss()).backward();
    });
  }
}

TEST_CASE("a backward that an exception ended leaves no gradient of routers to the next") {
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1", {}, kLayersRecomputed}, mesh, at::kDouble);
    const at::Tensor ids = at::arange(26).remainder(24).view({2, 13});
    NamedTensors want;
    for (const bool broken : {false, true}) {
      sharded.model.module->zero_grad();
      if (broken) {
        const at::Tensor logits = sharded.model.forward(ids, std::nullopt, std::nullopt);
        logits.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("broken"); });
        const at::Tensor sum = logits.sum();
        try {
          (sum + *sharded.model.routers->Loss()).backward();
          Expect(false, "no exception");
        } catch (const std::exception& error) {
          Expect(std::string(error.what()).find("broken") != std::string::npos, error.what());
        }
      }
      sharded.model.forward(ids, std::nullopt, std::nullopt).pow(2).sum().backward();
      for (const LiveParameter& parameter : sharded.applied->parameters()) {
        if (!broken) want[parameter.path] = parameter.tensor.grad().clone();
        ExpectEqual(parameter.tensor.grad(), want.at(parameter.path), parameter.path);
      }
    }
  });
}

TEST_CASE("a broken backward leaves no gradient to another one of the same graph") {
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1"}, mesh, at::kDouble);
    const at::Tensor ids = at::arange(26).remainder(24).view({2, 13});
    const at::Tensor logits = sharded.model.forward(ids, std::nullopt, std::nullopt);
    bool breaks = true;
    logits.register_hook([&](const at::Tensor&) {
      if (breaks) throw std::runtime_error("broken");
    });
    const at::Tensor sum = logits.sum();
    const at::Tensor both = sum + *sharded.model.routers->Loss();
    for (const bool broken : {true, false}) {
      breaks = broken;
      std::string text;
      try {
        (broken ? both : sum).backward({}, /*retain_graph=*/true);
      } catch (const std::exception& error) {
        text = error.what();
      }
      const char* want = broken ? "broken" : "are not part of the loss that is differentiated";
      Expect(text.find(want) != std::string::npos, want + (": " + text));
    }
  });
}

// The second runs of the first forward come when the second forward is the newest and its sums are still open.
TEST_CASE("layers are recomputed with the losses of their own forward") {
  const at::Tensor ids = at::arange(52).remainder(23).view({4, 13});
  NamedTensors want;
  for (const bool interleaved : {false, true}) {
    RunRanks("tp=1", [&](DeviceMesh& mesh) {
      const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1", {}, kLayersRecomputed}, mesh, at::kDouble);
      sharded.model.routers->SetCoefficients(kBothLosses);
      const auto forward = [&](int64_t part) {
        return sharded.model.forward(ids.narrow(0, 2 * part, 2), std::nullopt, std::nullopt).sum();
      };
      const at::Tensor first = forward(0);
      const at::Tensor of_first = *sharded.model.routers->Loss();
      if (!interleaved) (first + of_first).backward();
      const at::Tensor second = forward(1);
      if (interleaved) (first + of_first).backward();
      (second + 3 * *sharded.model.routers->Loss()).backward();
      for (const LiveParameter& parameter : sharded.applied->parameters()) {
        if (!interleaved) want[parameter.path] = parameter.tensor.grad();
        Expect(RelativeError(parameter.tensor.grad(), want.at(parameter.path)) <= 1e-12, parameter.path);
      }
    });
  }
}

// The gradients of `step` on one rank.
NamedTensors GradientsOf(const std::string& sections, const std::function<void(const ShardedModel&)>& step) {
  NamedTensors out;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1", {}, sections}, mesh, at::kDouble);
    sharded.model.routers->SetCoefficients(kBothLosses);
    step(sharded);
    for (const LiveParameter& parameter : sharded.applied->parameters()) {
      out[parameter.path] = parameter.tensor.grad().clone();
    }
  });
  return out;
}

void CheckNear(const NamedTensors& got, const NamedTensors& want) {
  for (const auto& [path, gradient] : want) {
    INFO(path);
    CHECK(RelativeError(got.at(path), gradient) <= 1e-12);
  }
}

// The sum of the outputs for two of four rows.
at::Tensor SumOfPart(const ShardedModel& sharded, int64_t part) {
  const at::Tensor ids = at::arange(52).remainder(23).view({4, 13});
  return sharded.model.forward(ids.narrow(0, 2 * part, 2), std::nullopt, std::nullopt).pow(2).sum();
}

TEST_CASE("two forwards in one backward have their own losses") {
  for (const std::string& sections : {std::string(), kLayersRecomputed}) {
    NamedTensors of_runs[2];
    for (const bool together : {false, true}) {
      of_runs[together ? 1 : 0] = GradientsOf(sections, [&](const ShardedModel& sharded) {
        at::Tensor sum = at::zeros({}, at::kDouble);
        for (int64_t part = 0; part < 2; ++part) {
          const at::Tensor outputs = SumOfPart(sharded, part);
          const at::Tensor loss = outputs + *sharded.model.routers->Loss() * (part + 1);
          if (together) sum = sum + loss;
          if (!together) loss.backward();
        }
        if (together) sum.backward();
      });
    }
    CheckNear(of_runs[1], of_runs[0]);
  }
}

TEST_CASE("of two forwards, the one whose loss was taken has its gradient") {
  for (const std::string& sections : {std::string(), kLayersRecomputed}) {
    const auto loss_of = [](const ShardedModel& sharded) { return *sharded.model.routers->Loss(); };
    const NamedTensors both = GradientsOf(sections, [&](const ShardedModel& sharded) {
      const at::Tensor with = SumOfPart(sharded, 0);
      (with + loss_of(sharded)).backward();
      sharded.model.routers->SetCoefficients({});
      SumOfPart(sharded, 1).backward();
    });
    const NamedTensors without = GradientsOf(sections, [&](const ShardedModel& sharded) {
      sharded.model.routers->SetCoefficients({});
      SumOfPart(sharded, 1).backward();
    });
    for (const bool taken_first : {false, true}) {
      INFO(sections << (taken_first ? ", the first" : ", the second") << " is taken");
      const auto forwards = [&](const ShardedModel& sharded) {
        at::Tensor bare, with, loss;
        if (!taken_first) bare = SumOfPart(sharded, 1);
        with = SumOfPart(sharded, 0);
        loss = loss_of(sharded);
        if (taken_first) bare = SumOfPart(sharded, 1);
        return std::tuple(bare, with, loss);
      };
      CheckNear(GradientsOf(sections,
                            [&](const ShardedModel& sharded) {
                              const auto [bare, with, loss] = forwards(sharded);
                              (bare + with + loss).backward();
                            }),
                both);
      CheckNear(GradientsOf(sections, [&](const ShardedModel& sharded) { std::get<0>(forwards(sharded)).backward(); }),
                without);
      const auto failures = RunRanksFailing("tp=1", [&](DeviceMesh& mesh) {
        const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1", {}, sections}, mesh, at::kDouble);
        const auto [bare, with, loss] = forwards(sharded);
        with.backward();
      });
      REQUIRE(failures.size() == 1);
      CHECK_THAT(failures[0].text, Catch::Contains("are not part of the loss that is differentiated"));
    }
  }
}

TEST_CASE("the losses of routers alone, and for chosen inputs, are refused") {
  for (const std::string& sections : {std::string(), kLayersRecomputed}) {
    RunRanks("tp=1", [&](DeviceMesh& mesh) {
      const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1", {}, sections}, mesh, at::kDouble);
      const auto text_of = [](const std::function<void()>& backward) {
        try {
          backward();
        } catch (const PlanError& error) {
          return std::string(error.what());
        }
        return std::string("no error");
      };
      at::Tensor outputs = SumOfPart(sharded, 0);
      at::Tensor loss = *sharded.model.routers->Loss();
      std::string text = text_of([&] { loss.backward(); });
      Expect(text.find("were differentiated without the outputs of the model") != std::string::npos, text);
      // The same graph with its outputs.
      (outputs + loss).backward();
      if (!sections.empty()) return;  // a recomputed layer refuses chosen inputs itself
      outputs = SumOfPart(sharded, 0);
      loss = *sharded.model.routers->Loss();
      at::Tensor table, head;
      for (const LiveParameter& parameter : sharded.applied->parameters()) {
        if (parameter.path == "model.embed_tokens.weight") table = parameter.tensor;
        if (parameter.path == "lm_head.weight") head = parameter.tensor;
      }
      const auto with_inputs = [&](const at::Tensor& input) {
        return torch::autograd::grad({outputs + loss}, {input}, {}, /*retain_graph=*/true).at(0);
      };
      text = text_of([&] { with_inputs(table); });
      Expect(text.find("cannot be differentiated for chosen inputs") != std::string::npos, text);
      ExpectEqual(with_inputs(head), head.grad(), "no router is on the way to the head");
    });
  }
}

TEST_CASE("checkpointing around the model is refused") {
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1"}, mesh, at::kDouble);
    at::Tensor outputs = SumOfPart(sharded, 0);
    const at::Tensor loss = *sharded.model.routers->Loss();
    std::string text;
    outputs.register_hook([&](const at::Tensor&) {
      {
        const at::NoGradGuard no_grad;
        SumOfPart(sharded, 1);  // leaves the backward as it is
      }
      try {
        const at::AutoGradMode with_gradients(true);
        SumOfPart(sharded, 0);
      } catch (const PlanError& error) {
        text = error.what();
      }
    });
    (outputs + loss).backward();
    Expect(text.find("is called in a backward") != std::string::npos, "no error: " + text);
  });
}

TEST_CASE("a loss that was dropped keeps no graph") {
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    std::weak_ptr<torch::autograd::Node> node;
    {
      const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1", {}, kLayersRecomputed}, mesh, at::kDouble);
      for (const bool differentiated : {false, true}) {
        const at::Tensor outputs = SumOfPart(sharded, 0);
        node = sharded.model.routers->Loss()->grad_fn();
        if (differentiated) (outputs + *sharded.model.routers->Loss()).backward();
        Expect(!node.expired(), "the newest loss can be taken again");
        SumOfPart(sharded, 1);
        Expect(node.expired(), "the loss of an earlier forward is kept");
      }
      SumOfPart(sharded, 0);
      node = sharded.model.routers->Loss()->grad_fn();
    }
    Expect(node.expired(), "the losses of a model that is gone are kept");
  });
}

TEST_CASE("a second Bind replaces the ranks of the first") {
  for (const char* mesh_text : {"cp=2", "dp_shard=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      RouterSetup setup{"mixtral", mesh_text, {}, "ddp {}"};
      const ShardedModel first = LoadWithRouters(setup, mesh, at::kDouble);
      const DeviceMesh alone =
          DeviceMesh::FromStore(c10::make_intrusive<c10d::HashStore>(), 0, MeshShape::Parse("tp=1").ValueOrThrow(),
                                {.device = DeviceChoice::kCpu, .host = "127.0.0.1"});
      setup.mesh = "tp=1";
      const ShardedModel second = LoadWithRouters(setup, alone, at::kDouble);
      NamedTensors of_runs[2];
      for (const bool again : {false, true}) {
        if (again) second.model.routers->Bind(*first.model.module, *first.applied);
        if (again) second.model.routers->Bind(*second.model.module, *second.applied);
        second.model.module->zero_grad();
        const at::Tensor outputs = SumOfPart(second, 0);
        (outputs + *second.model.routers->Loss()).backward();
        Expect(second.model.routers->counts() == CollectiveCounts{}, "one rank communicates nothing");
        for (const LiveParameter& parameter : second.applied->parameters()) {
          of_runs[again ? 1 : 0][parameter.path] = parameter.tensor.grad().clone();
        }
      }
      for (const auto& [path, gradient] : of_runs[0]) ExpectEqual(of_runs[1].at(path), gradient, path);
    });
  }
}

TEST_CASE("a mask of one row is that of all rows") {
  for (const char* mesh_text : {"tp=1", "cp=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      const ShardedModel sharded = LoadWithRouters({"mixtral", mesh_text, {}, "ddp {}"}, mesh, at::kDouble);
      sharded.model.routers->SetCoefficients(kBothLosses);
      const at::Tensor ids = at::arange(26).remainder(24).view({2, 13});
      at::Tensor row = at::ones({1, 13}, at::kLong);
      row.slice(1, 0, 4) = 0;
      double of_masks[2];
      for (const bool expanded : {false, true}) {
        sharded.model.forward(ids, expanded ? row.expand_as(ids) : row, std::nullopt);
        of_masks[expanded ? 1 : 0] = sharded.model.routers->Loss()->item<double>();
      }
      Expect(of_masks[0] == of_masks[1], "another loss");
      sharded.model.forward(ids, std::nullopt, std::nullopt);
      Expect(of_masks[0] != sharded.model.routers->Loss()->item<double>(), "the mask changes nothing");
      for (const at::IntArrayRef sizes : {at::IntArrayRef({2, 12}), at::IntArrayRef({3, 13})}) {
        std::string text;
        try {
          sharded.model.forward(ids, at::ones(sizes, at::kLong), std::nullopt);
        } catch (const PlanError& error) {
          text = error.what();
        }
        Expect(
            text.find(c10::str(sizes)) != std::string::npos && text.find("[2, 13] of input_ids") != std::string::npos,
            "the sizes: " + text);
      }
    });
  }
}

// The blocks of experts stay in the region with a sharded sequence, where the gate's rows are shards on tp.
const std::string kShardedRows = R"(
local transformer <const> = require "transformer"
local stream <const> = transformer.stream(options { sequence_parallel = true, loss_parallel = false, stable = false, context = "" })
local summed <const> = style { name = "summed", params = { ["*"] = shared } }
return plan {
  api = 1,
  transformer.ends(stream),
  at("model.layers.*.{input,post_attention}_layernorm", norm_on(stream.residual)),
  transformer.attention("model.layers.*.self_attn", stream,
                        { heads = config.num_attention_heads, kv_heads = config.num_key_value_heads }),
  at("model.layers.*.block_sparse_moe.gate", summed),
  at("model.layers.*.block_sparse_moe.experts.*.{w1,w2,w3}", summed),
}
)";

TEST_CASE("a router whose tokens are shards on tp is refused") {
  const at::Tensor ids = at::arange(24).view({2, 12});
  for (const bool masked : {false, true}) {
    const auto failures = RunRanksFailing("tp=2", [&](DeviceMesh& mesh) {
      const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=2", {}, {}, 1, kShardedRows}, mesh, at::kDouble);
      sharded.model.routers->SetCoefficients({});
      sharded.model.forward(ids, std::nullopt, std::nullopt).sum().backward();
      sharded.model.routers->SetCoefficients(kBothLosses);
      sharded.model.forward(ids, masked ? std::optional(at::ones_like(ids)) : std::nullopt, std::nullopt);
    });
    REQUIRE(failures.size() == 2);
    for (const RankFailure& failure : failures) {
      CHECK_THAT(failure.text, Catch::Contains("model.layers.0.block_sparse_moe.gate") &&
                                   Catch::Contains("12 tokens") && Catch::Contains("24 tokens: input_ids [2, 12]") &&
                                   Catch::Contains("gather the sequence before the block"));
    }
  }
}

TEST_CASE("what the losses of routers cannot be taken of is refused") {
  RouterLosses losses(2, {.balance = 1});
  CHECK_THROWS_WITH(losses.Loss(), Catch::Contains("before a forward"));
  RunOneLayer(losses, TokensOf(1, 2), std::nullopt, 2);
  losses.SetCoefficients({.z = 1});
  CHECK_THROWS_WITH(losses.Loss(), Catch::Contains("before a forward"));
  CHECK_THROWS_WITH(RunOneLayer(losses, TokensOf(2, 3), std::nullopt, 5),
                    Catch::Contains("layer.gate") && Catch::Contains("6 tokens: input_ids [2, 3]"));
  CHECK_THROWS_WITH(RunOneLayer(losses, TokensOf(2, 3), at::ones({2, 2}, at::kLong), 6),
                    Catch::Contains("does not fit") && Catch::Contains("[2, 2]") && Catch::Contains("[2, 3]"));
}

// Autograd's gradients of the formulas for one block, from the same scores.
struct RouterReference {
  at::Tensor loss, of_gate, of_tokens;
};

RouterReference ReferenceOf(const at::Tensor& gate, const at::Tensor& hidden, const RouterCoefficients& coefficients) {
  const at::Tensor weight = gate.detach().clone().requires_grad_();
  const at::Tensor tokens = hidden.detach().clone().requires_grad_();
  const at::Tensor scores = at::linear(tokens.flatten(0, 1), weight);
  const at::Tensor p = at::softmax(scores, -1, at::kFloat);
  const at::Tensor chosen = std::get<1>(at::topk(p, 2));
  const at::Tensor f = at::one_hot(chosen, gate.size(0)).to(at::kFloat).sum(1).mean(0);
  const at::Tensor balance = (f * p.mean(0)).sum() * static_cast<double>(gate.size(0));
  const at::Tensor z = at::logsumexp(scores.to(at::kFloat), -1).pow(2).mean();
  const at::Tensor loss = balance * coefficients.balance + z * coefficients.z;
  loss.backward();
  return {loss.detach(), weight.grad(), tokens.grad()};
}

TEST_CASE("the losses of routers in bfloat16, of parameters and by autocast, are those of autograd") {
  for (const bool autocast : {false, true}) {
    INFO((autocast ? "autocast" : "parameters"));
    MoeOptions options;
    options.experts = 4;
    options.experts_per_token = 2;
    options.expert.hidden = 8;
    options.expert.intermediate = 6;
    SparseMoe block(options);
    const auto losses = std::make_shared<RouterLosses>(4, kBothLosses);
    block->SetLosses(losses, "block");
    at::Tensor gate;
    {
      const at::NoGradGuard no_grad;
      int64_t seed = 0;
      for (const auto& entry : block->named_parameters()) {
        const at::Tensor values = at::sin(at::arange(entry.value().numel(), at::kFloat) * (1.7 + 0.3 * seed++));
        entry.value().copy_(values.view(entry.value().sizes()));
        if (entry.key() == "gate.weight") gate = entry.value();
      }
      if (!autocast) block->to(at::kBFloat16);
    }
    const at::Tensor hidden = at::cos(at::arange(2 * 5 * 8, at::kFloat) * 0.9)
                                  .view({2, 5, 8})
                                  .to(autocast ? at::kFloat : at::kBFloat16)
                                  .requires_grad_();
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor out = losses->Run(TokensOf(2, 5), std::nullopt, [&] { return block->forward(hidden); });
    const at::Tensor loss = *losses->Loss();
    const RouterReference want = ReferenceOf(gate, hidden, kBothLosses);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK(loss.scalar_type() == at::kFloat);
    CHECK(std::abs(loss.item<double>() - want.loss.item<double>()) <= 1e-5 * want.loss.item<double>());
    (out.sum() * 0 + loss).backward();
    // A few roundings of the scores' gradients.
    constexpr double kBound = 8 * kUnitRoundoffBFloat16;
    CHECK(gate.grad().scalar_type() == gate.scalar_type());
    CHECK(RelativeError(gate.grad().to(at::kFloat), want.of_gate.to(at::kFloat)) <= kBound);
    CHECK(RelativeError(hidden.grad().to(at::kFloat), want.of_tokens.to(at::kFloat)) <= kBound);
  }
}

TEST_CASE("a frozen gate passes the gradient of its losses on") {
  const auto freeze = [](ShardedModel& sharded) {
    for (const LiveParameter& parameter : sharded.applied->parameters()) {
      at::Tensor tensor = parameter.tensor;
      if (parameter.path.ends_with("gate.weight")) tensor.set_requires_grad(false);
    }
  };
  RoutedStep want = RoutedAlone({"mixtral", "tp=1"});
  REQUIRE(std::erase_if(want.gradients, [](const auto& one) { return one.first.ends_with("gate.weight"); }) == 2);
  for (const std::string& sections : {std::string(), kLayersRecomputed}) {
    for (const char* mesh : {"tp=1", "tp=2"}) {
      const auto [error, name] = WorstOf({"mixtral", mesh, {}, sections}, want, freeze);
      INFO(mesh << " " << sections << " " << name);
      CHECK(error <= 1e-9);
    }
  }
}

TEST_CASE("an adapter of a gate has the gradient of its losses") {
  const std::string adapter = R"(lora { at = "model.layers.*.block_sparse_moe.gate", rank = 2, alpha = 4 })";
  // B is 0 at first, and A would have no gradient.
  const auto fill = [](ShardedModel& sharded) {
    const at::NoGradGuard no_grad;
    for (const LiveParameter& parameter : sharded.applied->parameters()) {
      if (!parameter.tensor.requires_grad()) continue;
      parameter.tensor.copy_(at::sin(at::arange(parameter.tensor.numel(), at::kDouble)).view_as(parameter.tensor));
    }
  };
  RoutedStep want, without;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const RouterSetup setup{"mixtral", "tp=1", {}, adapter};
    want = StepWithRouters(setup, mesh, kBothLosses, fill);
    without = StepWithRouters(setup, mesh, std::nullopt, fill);
  });
  REQUIRE(want.gradients.size() == 4);
  for (const auto& [path, gradient] : want.gradients) CHECK(RelativeError(gradient, without.gradients.at(path)) > 1e-2);
  for (const std::string& sections : {adapter, adapter + ", " + kLayersRecomputed}) {
    const auto [error, name] = WorstOf({"mixtral", "tp=2", {}, sections}, want, fill);
    INFO(sections << " " << name);
    CHECK(error <= 1e-9);
  }
}

}  // namespace
}  // namespace moonshard::test
