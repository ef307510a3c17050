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
#include <utility>
#include <vector>

#include <ATen/ATen.h>

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
  std::string Name() const {
    std::string out = checkpoint + " " + mesh;
    for (const std::string& option : options) out += " " + option;
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
  if (mesh.shape().size(MeshAxis::kCp) > 1) inputs.options["context"] = std::string("ulysses");
  const std::string family = std::filesystem::path(SelectPlan(config).ValueOrThrow()).stem().string();
  Plan plan = EvaluatePlan("return plan { extends \"" + family + "\", " + setup.sections + " }", "routers.lua", inputs)
                  .ValueOrThrow();
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
  for (const char* checkpoint : {"mixtral", "qwen3_moe"}) {
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

TEST_CASE("the losses of routers in float64 give the numbers of one rank") {
  for (const char* checkpoint : {"mixtral", "qwen3_moe"}) {
    std::vector<RouterSetup> setups = SetupsOfRouters(checkpoint);
    setups.push_back({checkpoint, "dp_shard=3,ep=2"});
    setups.push_back({checkpoint, "tp=2", {}, kLayersRecomputed, 3});
    setups.push_back({checkpoint, "dp_shard=2,cp=2", {}, R"(fsdp { wrap = "model.layers.*", reshard = true })", 2});
    setups.push_back({checkpoint, "ep=2", {}, "ddp {}, " + kLayersRecomputed, 3});
    setups.push_back(
        {checkpoint, "tp=2", {}, R"(recompute { "model.layers.*", keep = { "attention", "every_second_matmul" } })"});
    if (std::string(checkpoint) == "mixtral") {
      setups.push_back({checkpoint, "tp=2", {}, R"(recompute { "model.layers.*.block_sparse_moe" })"});
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
        if (auto* block = dynamic_cast<SparseMoeImpl*>(module.get())) block->SetLosses(unbound);
      }
      const auto forward = sharded.model.forward;
      sharded.model.forward = [forward, unbound](const auto& ids, const auto& /*mask*/, const auto& positions) {
        unbound->Begin(std::nullopt);
        return forward(ids, std::nullopt, positions);
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

// Scores by hand: two layers of a router with two experts, one of two choices, of which the second row is padding.
TEST_CASE("the rows of all layers are pooled, and padding is left out") {
  RouterLosses losses(2, {.balance = 10, .z = 1});
  losses.Begin(at::tensor({1, 0, 1}, at::kLong).view({1, 3}));
  const double third = std::log(3.0);
  for (const std::vector<double>& numbers :
       {std::vector<double>{third, 0, 0, 50, 0, third}, {third, 0, 50, 0, third, 0}}) {
    const at::Tensor scores = at::tensor(numbers, at::kDouble).view({3, 2});
    losses.Count(scores, at::softmax(scores, -1), scores.argmax(-1, /*keepdim=*/true));
  }
  // f = (3, 1) / 4, P = (0.75 + 0.25 + 0.75 + 0.75, ...) / 4 = (2.5, 1.5) / 4, l = log 4 in each row.
  const double balance = 10 * 2 * (3 * 2.5 + 1 * 1.5) / 16;
  CHECK(losses.Loss()->item<double>() == Approx(balance + std::log(4.0) * std::log(4.0)).epsilon(1e-14));
}

TEST_CASE("rows that are all padding have no loss") {
  RouterLosses losses(2, {.balance = 1, .z = 1});
  losses.Begin(at::zeros({1, 2}, at::kLong));
  const at::Tensor scores = at::ones({2, 2});
  losses.Count(scores, at::softmax(scores, -1), at::zeros({2, 1}, at::kLong));
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

TEST_CASE("two forwards in one backward have their own losses, and recomputed ones are refused") {
  const at::Tensor ids = at::arange(52).remainder(23).view({4, 13});
  NamedTensors want;
  for (const bool together : {false, true}) {
    RunRanks("tp=1", [&](DeviceMesh& mesh) {
      const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1"}, mesh, at::kDouble);
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (int64_t part = 0; part < 2; ++part) {
        const at::Tensor logits = sharded.model.forward(ids.narrow(0, 2 * part, 2), std::nullopt, std::nullopt);
        const at::Tensor loss = logits.sum() + *sharded.model.routers->Loss() * (part + 1);
        if (together) sum = sum + loss;
        if (!together) loss.backward();
      }
      if (together) sum.backward();
      for (const LiveParameter& parameter : sharded.applied->parameters()) {
        if (!together) want[parameter.path] = parameter.tensor.grad();
        Expect(RelativeError(parameter.tensor.grad(), want.at(parameter.path)) <= 1e-12, parameter.path);
      }
    });
  }
  const auto failures = RunRanksFailing("tp=1", [&](DeviceMesh& mesh) {
    const ShardedModel sharded = LoadWithRouters({"mixtral", "tp=1", {}, kLayersRecomputed}, mesh, std::nullopt);
    at::Tensor sum = at::zeros({});
    for (int64_t part = 0; part < 2; ++part) {
      const at::Tensor logits = sharded.model.forward(ids, std::nullopt, std::nullopt);
      sum = sum + logits.sum() + *sharded.model.routers->Loss();
    }
    sum.backward();
  });
  REQUIRE(failures.size() == 1);
  CHECK_THAT(failures[0].text, Catch::Contains("two forwards are recomputed in one backward"));
}

TEST_CASE("what the losses of routers cannot be taken of is refused") {
  RouterLosses losses(2, {.balance = 1});
  CHECK_THROWS_WITH(losses.Loss(), Catch::Contains("before a forward"));
  losses.Begin(std::nullopt);
  losses.Count(at::ones({1, 2}), at::ones({1, 2}) / 2, at::zeros({1, 1}, at::kLong));
  losses.SetCoefficients({.z = 1});
  CHECK_THROWS_WITH(losses.Loss(), Catch::Contains("before a forward"));
  losses.Begin(at::ones({2, 3}, at::kLong));
  const at::Tensor scores = at::ones({5, 2});
  CHECK_THROWS_WITH(losses.Count(scores, scores / 2, at::zeros({5, 1}, at::kLong)),
                    Catch::Contains("does not fit the tokens of a router") && Catch::Contains("6 positions"));
}

}  // namespace
}  // namespace moonshard::test
