// Every recorded checkpoint, sharded by the shipped plan on thread ranks, against what transformers computed: logits,
// loss and every gradient, for every tp that the heads allow, with and without sequence parallelism, at two sequence
// lengths (one that no tp divides). Also the collectives of a step, and gradients over micro-batches.
#include <catch2/catch.hpp>

#include <iostream>

#include "dsl/eval/choose_plan.h"
#include "dsl/eval/load_plan.h"
#include "engine/apply/load.h"
#include "engine/apply/parallelize.h"
#include "engine/apply/state.h"
#include "engine/compile/cost.h"
#include "engine/models/decoder.h"
#include "engine/nn/defer_init.h"
#include "engine/safetensors/checkpoint.h"
#include "engine/safetensors/config.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

constexpr double kTolerance = 2e-4;

struct Setup {
  std::filesystem::path folder;
  int64_t tp = 1;
  bool sequence_parallel = false;
  std::string Name() const {
    return folder.filename().string() + " tp=" + std::to_string(tp) + (sequence_parallel ? " sequence parallel" : "");
  }
};

struct ShardedModel {
  CausalLm model;
  std::shared_ptr<AppliedPlan> applied;
};

ShardedModel Load(const Setup& setup, const DeviceMesh& mesh) {
  const JsonValue config = ReadConfig(setup.folder);
  ShardedModel out;
  {
    const nn::DeferInit defer;
    out.model = MakeCausalLm(config).ValueOrThrow();
  }
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  inputs.options["sequence_parallel"] = setup.sequence_parallel;
  const Plan plan = LoadPlanFile(SelectPlan(config).ValueOrThrow(), inputs).ValueOrThrow();
  out.applied = ParallelizeModule(*out.model.module, plan, mesh);
  const Checkpoint checkpoint = Checkpoint::Open(setup.folder.string()).ValueOrThrow();
  Expect(LoadCheckpoint(*out.applied, checkpoint).empty(), "the checkpoint fits without a warning");
  return out;
}

std::optional<at::Tensor> Optional(const NamedTensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? std::nullopt : std::optional(found->second);
}

// The largest relative error of all gradients recorded; the name of the worst goes to `worst`.
double GradientError(const ShardedModel& sharded, const NamedTensors& expected, std::string& worst) {
  double error = 0;
  for (const LiveParameter& parameter : sharded.applied->parameters()) {
    const at::Tensor whole = GatherWhole(*sharded.applied, parameter, parameter.tensor.grad());
    const auto found = expected.find("grad." + parameter.path);
    Expect(found != expected.end(), "no recorded gradient of " + parameter.path);
    const double here = RelativeError(whole, found->second);
    if (here > error) worst = parameter.path;
    error = std::max(error, here);
  }
  return error;
}

std::vector<Setup> Setups() {
  std::vector<Setup> out;
  for (const std::filesystem::path& folder : ParityFolders()) {
    const int64_t heads = ReadConfig(folder).Find("num_attention_heads")->AsInt();
    for (int64_t tp = 1; tp <= heads; tp *= 2) {
      for (const bool sequence_parallel : {false, true}) out.push_back({folder, tp, sequence_parallel});
    }
  }
  return out;
}

int64_t Count(const CollectiveCounts& counts, Direction direction, CollectiveKind kind) {
  return counts.of(direction, kind).count;
}

// What explain said before anything ran is what ran.
void ExpectPredicted(const ShardedModel& sharded, const CollectiveCounts& counts, const at::Tensor& ids) {
  const PlanTotals totals =
      TotalsOf(sharded.applied->plan(), sharded.applied->mesh().rank(), Tokens{ids.size(0), ids.size(1)});
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      const CollectiveCount& expected = totals.collectives.of(direction, kind);
      const CollectiveCount& got = counts.of(direction, kind);
      const std::string what = std::string(ToString(kind)) + " " + ToString(direction);
      Expect(got.count == expected.count,
             what + ": " + std::to_string(got.count) + " ran, " + std::to_string(expected.count) + " predicted");
      Expect(got.bytes == expected.bytes,
             what + ": " + std::to_string(got.bytes) + " bytes, " + std::to_string(expected.bytes) + " predicted");
    }
  }
}

// Per decoder layer 2 + 2, the embedding's, the head's and one flat sum for each group of shared gradients.
void ExpectCounts(const Setup& setup, const ShardedModel& sharded, const CollectiveCounts& counts) {
  if (setup.tp == 1) {
    Expect(counts == CollectiveCounts{}, "one rank communicates with nobody");
    return;
  }
  const JsonValue config = ReadConfig(setup.folder);
  const int64_t layers = config.Find("num_hidden_layers")->AsInt();
  const bool replicated_heads = config.Find("num_key_value_heads")->AsInt() < setup.tp;
  using K = CollectiveKind;
  const auto forward = [&](K kind) { return Count(counts, Direction::kForward, kind); };
  const auto backward = [&](K kind) { return Count(counts, Direction::kBackward, kind); };
  const int64_t sums = (setup.sequence_parallel ? 1 : 0) + (replicated_heads ? 1 : 0);
  if (setup.sequence_parallel) {
    Expect(forward(K::kAllGather) == 2 * layers + 2, "all-gathers forward: layers, the head's input and output");
    Expect(forward(K::kReduceScatter) == 2 * layers + 1, "reduce-scatters forward: layers and the embedding");
    Expect(backward(K::kAllGather) == 2 * layers + 1, "all-gathers backward");
    Expect(backward(K::kReduceScatter) == 2 * layers + 1, "reduce-scatters backward");
    Expect(forward(K::kAllReduce) == 0, "no all-reduce forward");
    Expect(backward(K::kAllReduce) == sums, "flat sums backward");
  } else {
    Expect(forward(K::kAllReduce) == 2 * layers + 1, "all-reduces forward: layers and the embedding");
    Expect(forward(K::kAllGather) == 1, "the head's output");
    Expect(backward(K::kAllReduce) == 2 * layers + 1 + sums, "all-reduces backward: layers, the head and flat sums");
    Expect(forward(K::kReduceScatter) + backward(K::kReduceScatter) + backward(K::kAllGather) == 0, "nothing else");
  }
  Expect(sharded.applied->Findings().empty(), "every planned module was called");
}

TEST_CASE("sharded checkpoints give the numbers of transformers") {
  for (const Setup& setup : Setups()) {
    DYNAMIC_SECTION(setup.Name()) {
      double worst_logits = 0;
      double worst_gradient = 0;
      std::string worst_name;
      std::mutex mutex;
      RunRanks("tp=" + std::to_string(setup.tp), [&](DeviceMesh& mesh) {
        const ShardedModel sharded = Load(setup, mesh);
        for (const std::string suffix : {"_1", "_2", "_padded"}) {
          if (!std::filesystem::exists(setup.folder / ("inputs" + suffix + ".safetensors"))) continue;
          const NamedTensors inputs = ReadTensors(setup.folder / ("inputs" + suffix + ".safetensors"));
          const NamedTensors expected = ReadTensors(setup.folder / ("expected" + suffix + ".safetensors"));
          for (const LiveParameter& parameter : sharded.applied->parameters()) parameter.tensor.mutable_grad().reset();
          sharded.applied->ClearCounts();
          const std::optional<at::Tensor> mask = Optional(inputs, "attention_mask");
          const at::Tensor logits =
              sharded.model.forward(inputs.at("input_ids"), mask, Optional(inputs, "position_ids"));
          const at::Tensor loss = CausalLmLoss(logits, inputs.at("labels"));
          loss.backward();
          ExpectCounts(setup, sharded, sharded.applied->counts());
          ExpectPredicted(sharded, sharded.applied->counts(), inputs.at("input_ids"));
          at::Tensor got = logits.detach();
          at::Tensor want = expected.at("logits");
          if (mask) {
            got = got * mask->unsqueeze(-1);
            want = want * mask->unsqueeze(-1);
          }
          const double logits_error =
              std::max(RelativeError(got, want), RelativeError(loss.detach(), expected.at("loss")));
          std::string name;
          const double gradient_error = GradientError(sharded, expected, name);
          const std::lock_guard lock(mutex);
          worst_logits = std::max(worst_logits, logits_error);
          if (gradient_error > worst_gradient) worst_name = name;
          worst_gradient = std::max(worst_gradient, gradient_error);
        }
      });
      std::cout << setup.Name() << ": logits and loss " << worst_logits << ", gradients " << worst_gradient << " ("
                << worst_name << ")\n";
      CHECK(worst_logits <= kTolerance);
      CHECK(worst_gradient <= kTolerance);
    }
  }
}

TEST_CASE("gradients over micro-batches are those of the mean of their losses") {
  Setup setup{std::filesystem::path(MOONSHARD_SOURCE_DIR) / "tests/parity/llama_gqa", 1, false};
  for (const int64_t tp : {2, 8}) {
    for (const bool sequence_parallel : {false, true}) {
      setup.tp = tp;
      setup.sequence_parallel = sequence_parallel;
      DYNAMIC_SECTION(setup.Name()) {
        RunRanks("tp=" + std::to_string(tp), [&](DeviceMesh& mesh) {
          const ShardedModel sharded = Load(setup, mesh);
          for (const std::string number : {"1", "2"}) {
            const NamedTensors inputs = ReadTensors(setup.folder / ("inputs_micro_" + number + ".safetensors"));
            const at::Tensor logits = sharded.model.forward(inputs.at("input_ids"), std::nullopt, std::nullopt);
            (CausalLmLoss(logits, inputs.at("labels")) / 2).backward();
          }
          std::string name;
          const double error = GradientError(sharded, ReadTensors(setup.folder / "expected_micro.safetensors"), name);
          Expect(error <= kTolerance, name + " differs by " + std::to_string(error));
        });
      }
    }
  }
}

}  // namespace
}  // namespace moonshard::test
