// One model, one set of weights, one sequence of batches: the losses of AdamW's steps are those of one rank however
// the ranks share the work, with and without recomputation and accumulation. In float64, where what is left is the
// order of sums, and in float32.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/clip_grad_norm.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

constexpr int64_t kCurveRows = 8;  // of a step, over all ranks and micro-batches
constexpr int64_t kCurveTokens = 9;
constexpr double kCurveRate = 1e-3;

struct CurveSetup {
  std::string mesh;
  std::string section;  // of the plan, in place of the shipped one's
  bool sequence_parallel = false;
  std::string context = "ulysses";
};

struct Variant {
  bool recompute = false;
  int64_t micros = 1;
  int steps = 50;
  at::ScalarType dtype = at::kDouble;
};

at::Tensor Batch(int step, int64_t vocabulary) {
  const at::Tensor numbers = at::arange(kCurveRows * (kCurveTokens + 1)) * (step % 7 + 3) + 5 * step;
  return numbers.remainder(vocabulary).view({kCurveRows, kCurveTokens + 1});
}

at::Tensor LossOf(const at::Tensor& logits, const at::Tensor& rows) {
  return at::cross_entropy_loss(logits.flatten(0, 1), rows.narrow(1, 1, kCurveTokens).flatten());
}

// The losses of all steps, the mean over the ranks; the same on every rank.
std::vector<double> Train(const std::filesystem::path& folder, const CurveSetup& setup, const Variant& variant,
                          const DeviceMesh& mesh) {
  const JsonValue config = ReadConfig(folder);
  CausalLm model;
  {
    const nn::DeferInit defer;
    model = MakeCausalLm(config).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*model.module).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  inputs.options["sequence_parallel"] = setup.sequence_parallel;
  inputs.options["context"] = setup.context;
  if (config.Find("num_experts_per_tok") != nullptr) inputs.options["exchange"] = true;
  const std::string family = std::filesystem::path(SelectPlan(config).ValueOrThrow()).stem().string();
  const std::string recompute = variant.recompute ? R"(recompute { "model.layers.*" }, )" : "";
  const Plan plan =
      EvaluatePlan("return plan { extends \"" + family + "\", " + recompute + setup.section + " }", "curve.lua", inputs)
          .ValueOrThrow();
  ApplyOptions options;
  options.deferred_type = variant.dtype;
  const auto applied = ParallelizeModule(*model.module, plan, mesh, options);
  Expect(LoadCheckpoint(*applied, Checkpoint::Open(folder.string()).ValueOrThrow()).empty(), "the checkpoint fits");
  std::vector<at::Tensor> parameters;
  for (const LiveParameter& p : applied->parameters()) {
    if (p.tensor.requires_grad()) parameters.push_back(p.tensor);
  }
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(kCurveRate));

  const int64_t rank = mesh.shape().DataCoordinate(mesh.rank());
  const int64_t rows = kCurveRows / (mesh.shape().data_ranks() * variant.micros);
  const int64_t vocabulary = config.Find("vocab_size")->AsInt();
  std::vector<double> losses;
  for (int step = 0; step < variant.steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor batch = Batch(step, vocabulary);
    double mine = 0;
    for (int64_t micro = 0; micro < variant.micros; ++micro) {
      const at::Tensor own = batch.narrow(0, (rank * variant.micros + micro) * rows, rows);
      applied->SetGradientSync(micro + 1 == variant.micros);
      const at::Tensor logits = model.forward(own.narrow(1, 0, kCurveTokens), std::nullopt, std::nullopt);
      const at::Tensor loss = LossOf(logits, own) / static_cast<double>(variant.micros);
      loss.backward();
      mine += loss.item<double>();
    }
    ClipGradNorm(*applied, 1.0);
    optimizer.step();
    losses.push_back(mine);
  }
  return losses;
}

std::vector<double> Curve(const std::filesystem::path& folder, const CurveSetup& setup, const Variant& variant) {
  std::mutex mutex;
  std::vector<double> sum(static_cast<size_t>(variant.steps), 0);
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    const std::vector<double> mine = Train(folder, setup, variant, mesh);
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < mine.size(); ++i) {
      sum[i] += mine[i] / static_cast<double>(mesh.shape().world_size());
    }
  });
  return sum;
}

// How far the curve of the model in `folder` may be from `want`. In float64 a hundred times the first order: so much
// curvature makes of it in 50 steps, and there it is small beside any wrong gradient.
double BoundOfCurve(const std::filesystem::path& folder, const std::vector<double>& want, at::ScalarType dtype) {
  const TrainingRun run = {.parameters = 7e4,
                           .steps = static_cast<double>(want.size()),
                           .learning_rate = kCurveRate,
                           .loss = *std::max_element(want.begin(), want.end())};
  const SumChain chain = ChainOf((folder / "expected_1.safetensors").string());
  return dtype == at::kDouble ? 100 * CurveBound(chain, run, kUnitRoundoff64) : CurveBound(chain, run);
}

std::filesystem::path DirectoryOf(const std::string& name) {
  for (const std::filesystem::path& found : ParityFolders()) {
    if (found.filename() == name) return found;
  }
  FAIL("no checkpoint " << name);
  return {};
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

TEST_CASE("a tied embedding and head are one parameter of the root's unit") {
  const std::filesystem::path folder = DirectoryOf("llama_tied_llama3");
  const std::vector<double> one = Curve(folder, {"tp=1", ""}, {false, 1, 8});
  for (const char* mesh : {"dp=2", "dp=2,tp=2"}) {
    CHECK(LargestDifference(Curve(folder, {mesh, ""}, {true, 2, 8}), one) <= BoundOfCurve(folder, one, at::kDouble));
  }
}

TEST_CASE("the loss curve is the same however the ranks share the work") {
  const std::filesystem::path folder = DirectoryOf("llama_gqa");
  const CurveSetup setups[] = {
      {"tp=1", ""},
      {"dp=2", "ddp {}"},
      {"dp=2", R"(fsdp { wrap = "model.layers.*" })"},
      {"tp=2", ""},
      {"dp=2,tp=2", R"(fsdp { wrap = "model.layers.*", reshard = true })"},
      {"dp=2,tp=2", R"(fsdp { wrap = "model.layers.*" })", true},
      {"dp_replicate=2,dp_shard=2", R"(fsdp { wrap = "model.layers.*", reshard = false })"},
      {"cp=2", ""},
      {"cp=2,tp=2", "", true},
      {"dp=2,cp=2", R"(fsdp { wrap = "model.layers.*", reshard = true })"},
      {"dp=2,cp=2", "ddp {}"},
      {"cp=4", "", false, "ring"},
      {"dp=2,cp=2", R"(fsdp { wrap = "model.layers.*", reshard = true })", false, "ring"},
      {"cp=2x2", "", false, "ulysses_ring"},
  };
  // Every setup for 50 steps in both dtypes. Recomputation and accumulation change what a single step computes, so
  // twelve steps show them, in float64, where no rounding can hide a difference.
  const Variant variants[] = {
      {},
      {.dtype = at::kFloat},
      {.recompute = true, .steps = 12},
      {.micros = 2, .steps = 12},
      {.recompute = true, .micros = 2, .steps = 12},
  };
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const std::vector<double> one = Curve(folder, {"tp=1", ""}, {.dtype = dtype});
    CHECK(one.back() < one.front() - 0.5);  // it learns
    for (const CurveSetup& setup : setups) {
      for (const Variant& variant : variants) {
        if (variant.dtype != dtype) continue;
        INFO(setup.mesh << " " << setup.section << (setup.sequence_parallel ? " sequence parallel " : " ")
                        << setup.context << (variant.recompute ? " recomputed" : "") << " micro-batches "
                        << variant.micros << " " << dtype);
        const std::vector<double> first(one.begin(), one.begin() + variant.steps);
        CHECK(LargestDifference(Curve(folder, setup, variant), first) <= BoundOfCurve(folder, one, dtype));
      }
    }
  }
}

TEST_CASE("the loss curve of adapters is the same however the ranks share the work") {
  const std::filesystem::path folder = DirectoryOf("llama_gqa");
  const std::string lora = R"(lora { at = "model.layers.*.{self_attn,mlp}.*_proj", rank = 4, alpha = 400 })";
  const std::vector<double> one = Curve(folder, {"tp=1", lora}, {});
  CHECK(one.back() < one.front() - 0.2);  // it learns
  const CurveSetup setups[] = {
      {"dp=2", "ddp {}, " + lora},
      {"tp=2", lora},
      {"tp=4", lora, true},
      {"dp=2,tp=2", R"(fsdp { wrap = "model.layers.*", reshard = true }, )" + lora, true},
      {"dp_replicate=2,dp_shard=2", R"(fsdp { wrap = "model.layers.*", accumulate = "shards" }, )" + lora},
      {"cp=2", lora},
      {"cp=2,tp=2", lora, true},
      {"dp=2,cp=2", R"(fsdp { wrap = "model.layers.*", reshard = true }, )" + lora},
  };
  for (const CurveSetup& setup : setups) {
    for (const Variant& variant : {Variant{}, Variant{.recompute = true, .micros = 2, .steps = 12}}) {
      INFO(setup.mesh << " " << setup.section << (setup.sequence_parallel ? " sequence parallel" : "")
                      << (variant.recompute ? " recomputed" : "") << " micro-batches " << variant.micros);
      const std::vector<double> first(one.begin(), one.begin() + variant.steps);
      CHECK(LargestDifference(Curve(folder, setup, variant), first) <= 1e-9);
    }
  }
}

// In float64, where no rounding gives a token to another expert.
TEST_CASE("the loss curve of experts is the same however the ranks share the work") {
  const CurveSetup setups[] = {
      {"ep=2", ""},
      {"ep=4", "ddp {}"},
      {"ep=2,tp=2", "", true},
      {"dp=2,ep=2", R"(fsdp { wrap = "model.layers.*", reshard = true })"},
      {"dp=2,ep=2", "ddp {}"},
      {"ep=2,cp=2", ""},
  };
  for (const char* name : {"mixtral", "qwen3_moe"}) {
    const std::filesystem::path folder = DirectoryOf(name);
    const std::vector<double> one = Curve(folder, {"tp=1", ""}, {});
    CHECK(one.back() < one.front() - 0.5);  // it learns
    const size_t count = std::string(name) == "mixtral" ? std::size(setups) : 3;
    for (const CurveSetup& setup : std::span(setups).first(count)) {
      for (const Variant& variant : {Variant{}, Variant{.recompute = true, .micros = 2, .steps = 12}}) {
        INFO(name << " " << setup.mesh << " " << setup.section << (setup.sequence_parallel ? " sequence parallel" : "")
                  << (variant.recompute ? " recomputed" : "") << " micro-batches " << variant.micros);
        const std::vector<double> first(one.begin(), one.begin() + variant.steps);
        CHECK(LargestDifference(Curve(folder, setup, variant), first) <= 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace moonshard::test
