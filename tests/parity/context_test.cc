// Context parallelism (transformer.stream { context = "ulysses" }, "ring" and "plain_ring") on thread ranks: recorded
// checkpoints under their shipped plans against what transformers computed, and in float64 against one rank: logits,
// loss, every gradient, and the collectives that explain predicts. The lengths of the recorded inputs are ones that no axis divides, too.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/documents.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
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

struct ContextSetup {
  std::string checkpoint;
  std::string mesh;
  bool sequence_parallel = false;
  std::string sections;  // of the plan, beside the shipped one's
  int64_t micros = 1;
  std::string context = "ulysses";
  double dropout = 0;  // of attention weights
  std::string Name() const {
    return checkpoint + " " + context + " " + mesh + (sequence_parallel ? " sequence parallel" : "") +
           (sections.empty() ? "" : " " + sections) +
           (micros > 1 ? " in " + std::to_string(micros) + " micro-batches" : "");
  }
};

ShardedModel LoadInContext(const ContextSetup& setup, const DeviceMesh& mesh, std::optional<c10::ScalarType> dtype,
                           const std::function<void(CompiledPlan&)>& change = {}) {
  const std::filesystem::path folder = SourcePath("tests/parity/" + setup.checkpoint);
  JsonValue config = ReadConfig(folder);
  if (setup.dropout > 0) config.AsObject()["attention_dropout"] = setup.dropout;
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
  inputs.options["context"] = setup.context;
  inputs.options["sequence_parallel"] = setup.sequence_parallel;
  const std::string family = std::filesystem::path(SelectPlan(config).ValueOrThrow()).stem().string();
  Plan plan = EvaluatePlan("return plan { extends \"" + family + "\", " + setup.sections + " }", "context.lua", inputs)
                  .ValueOrThrow();
  CompiledPlan compiled =
      ResolvePlan(std::make_shared<const Plan>(std::move(plan)), live.tree, mesh.shape()).ValueOrThrow();
  if (change) {
    change(compiled);
    CompileSteps(compiled);
  }
  out.applied = AppliedPlan::Apply(live, std::move(compiled), mesh, {.deferred_type = dtype});
  Expect(LoadCheckpoint(*out.applied, Checkpoint::Open(folder.string()).ValueOrThrow()).empty(),
         "the checkpoint fits without a warning");
  return out;
}

// The largest relative error of all gradients, with the parameter that has it.
std::pair<double, std::string> WorstGradient(const ShardedModel& sharded, const NamedTensors& expected,
                                             const std::string& prefix) {
  std::pair<double, std::string> worst = {0, ""};
  for (const LiveParameter& parameter : sharded.applied->parameters()) {
    const at::Tensor full = GatherFull(*sharded.applied, parameter, parameter.tensor.grad());
    const auto found = expected.find(prefix + parameter.path);
    Expect(found != expected.end(), "no gradient of " + parameter.path);
    worst = std::max(worst, {RelativeError(full, found->second), parameter.path});
  }
  return worst;
}

// What explain predicts is what ran.
void ExpectAsPredicted(const ShardedModel& sharded, const CollectiveCounts& counts, const at::Tensor& ids, bool experts,
                       bool windows) {
  Expect(counts.of(Direction::kForward, CollectiveKind::kAllToAll).count > 0, "heads or keys are exchanged");
  const PlanTotals totals =
      TotalsOf(sharded.applied->plan(), sharded.applied->mesh().rank(), Tokens{ids.size(0), ids.size(1)});
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      const CollectiveCount& expected = totals.collectives.of(direction, kind);
      const CollectiveCount& got = counts.of(direction, kind);
      // A block of experts owns no parameter that tells how wide what it redistributes is (compile/cost.h).
      const bool more = experts && got.count == expected.count && got.bytes > expected.bytes;
      // A ring sends no keys beyond the window of the model, which the plans declare only where all layers have it.
      const bool fewer =
          windows && kind == CollectiveKind::kAllToAll && got.count <= expected.count && got.bytes <= expected.bytes;
      Expect(got == expected || more || fewer, std::string(ToString(kind)) + " " + ToString(direction) + ": " +
                                                   std::to_string(got.count) + " of " + std::to_string(got.bytes) +
                                                   " bytes ran, " + std::to_string(expected.count) + " of " +
                                                   std::to_string(expected.bytes) + " were predicted");
    }
  }
}

// Whether some layers have a window and others have none.
bool HasMixedWindows(const JsonValue& config) {
  const JsonValue* const window = config.Find("sliding_window");
  const bool mixes = config.Find("layer_types") != nullptr || config.Find("sliding_window_pattern") != nullptr ||
                     config.Find("max_window_layers") != nullptr;
  return mixes && window != nullptr && window->is_int() && window->AsInt() > 0;
}

// Every recorded checkpoint whose plan has the option, on every mesh that its heads allow.
std::vector<ContextSetup> RecordedSetups() {
  std::vector<ContextSetup> out;
  for (const char* checkpoint :
       {"llama_gqa", "llama_bias", "llama_tied_llama3", "mistral_window8", "ministral3_yarn", "qwen2_window5",
        "qwen3_head_dim12", "qwen3_bias_window", "gemma3_softcap", "gemma3_old_untied", "phi3_gqa", "phi3_longrope",
        "phi_partial", "phi_qknorm", "baichuan1", "baichuan2", "decilm"}) {
    for (const char* mesh : {"cp=2", "cp=4", "cp=2,tp=2"}) {
      out.push_back({checkpoint, mesh});
      if (std::string(mesh).find("tp") != std::string::npos) out.push_back({checkpoint, mesh, true});
    }
  }
  for (const char* checkpoint : {"mixtral", "qwen3_moe", "qwen3_moe_unnormalized", "qwen2_moe", "qwen2_moe_window"}) {
    out.push_back({checkpoint, "cp=2"});
    out.push_back({checkpoint, "cp=4"});
    out.push_back({checkpoint, "cp=2,tp=2", true});
  }
  for (const char* checkpoint : {"llama_gqa", "qwen3_head_dim12", "gemma3_softcap"}) {
    out.push_back({checkpoint, "dp_shard=2,cp=2"});
    out.push_back({checkpoint, "dp_shard=2,cp=2", false, "ddp {}"});
  }
  out.push_back({"llama_gqa", "cp=8"});
  out.push_back({"llama_gqa", "cp=2,tp=4"});
  out.push_back({"llama_gqa", "cp=4,tp=2", true});
  const std::vector<ContextSetup> exchanging = out;
  for (ContextSetup setup : exchanging) {
    setup.context = "ring";
    out.push_back(std::move(setup));
  }
  // More ranks than heads.
  for (const char* checkpoint : {"qwen3_head_dim12", "gemma3_softcap", "mistral_window8", "mixtral"}) {
    out.push_back({checkpoint, "cp=8", false, "", 1, "ring"});
  }
  out.push_back({"llama_gqa", "cp=8,tp=2", true, "", 1, "ring"});
  for (const char* checkpoint : {"llama_gqa", "mistral_window8", "gemma3_softcap", "mixtral"}) {
    out.push_back({checkpoint, "cp=4", false, "", 1, "plain_ring"});
    out.push_back({checkpoint, "cp=2,tp=2", true, "", 1, "plain_ring"});
  }
  // Heads exchanged between two or four ranks, and keys between two or four groups of them.
  for (const char* checkpoint :
       {"llama_gqa", "qwen3_head_dim12", "gemma3_softcap", "mistral_window8", "mixtral", "phi3_gqa", "qwen3_moe"}) {
    out.push_back({checkpoint, "cp=2x2", false, "", 1, "ulysses_ring"});
    out.push_back({checkpoint, "cp=2x2,tp=2", true, "", 1, "ulysses_ring"});
  }
  for (const char* mesh : {"cp=3x2", "cp=2x4", "cp=4x2", "dp_shard=2,cp=2x2", "cp=2x2,tp=2"}) {
    out.push_back({"llama_gqa", mesh, false, "", 1, "ulysses_ring"});
  }
  out.push_back({"llama_gqa", "dp_shard=2,cp=2x2", false, "ddp {}", 1, "ulysses_ring"});
  return out;
}

TEST_CASE("context parallelism gives the numbers of transformers") {
  for (const ContextSetup& setup : RecordedSetups()) {
    DYNAMIC_SECTION(setup.Name()) {
      const std::filesystem::path folder = SourcePath("tests/parity/" + setup.checkpoint);
      const double bound = RecordedBound(folder / "expected_1.safetensors");
      double worst_logits = 0;
      std::pair<double, std::string> worst_gradient = {0, ""};
      std::mutex mutex;
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        const ShardedModel sharded = LoadInContext(setup, mesh, std::nullopt);
        for (const std::string suffix : {"_1", "_2", "_padded", "_packed"}) {
          if (!std::filesystem::exists(folder / ("inputs" + suffix + ".safetensors"))) continue;
          const NamedTensors inputs = ReadTensors(folder / ("inputs" + suffix + ".safetensors"));
          const NamedTensors expected = ReadTensors(folder / ("expected" + suffix + ".safetensors"));
          const auto optional = [&](const char* name) {
            const auto found = inputs.find(name);
            return found == inputs.end() ? std::nullopt : std::optional(found->second);
          };
          for (const LiveParameter& parameter : sharded.applied->parameters()) parameter.tensor.mutable_grad().reset();
          sharded.applied->ClearCounts();
          const std::optional<at::Tensor> mask = optional("attention_mask");
          const at::Tensor& ids = inputs.at("input_ids");
          const std::optional<at::Tensor> documents = optional("document_ids");
          const at::Tensor logits = documents ? sharded.model.packed(ids, *documents, mask, std::nullopt)
                                              : sharded.model.forward(ids, mask, optional("position_ids"));
          const at::Tensor loss = CausalLmLoss(logits, inputs.at("labels"));
          loss.backward();
          const bool experts = ReadConfig(folder).Find("num_experts_per_tok") != nullptr;
          const bool windows = setup.context != "ulysses" && HasMixedWindows(ReadConfig(folder));
          ExpectAsPredicted(sharded, sharded.applied->counts(), inputs.at("input_ids"), experts, windows);
          const at::Tensor shown = mask ? mask->unsqueeze(-1) : at::ones({1});
          const double logits_error = std::max(RelativeError(logits.detach() * shown, expected.at("logits") * shown),
                                               RelativeError(loss.detach(), expected.at("loss")));
          const auto gradient = WorstGradient(sharded, expected, "grad.");
          const std::lock_guard lock(mutex);
          worst_logits = std::max(worst_logits, logits_error);
          worst_gradient = std::max(worst_gradient, gradient);
        }
        Expect(sharded.applied->Findings().empty(), "every planned module was called");
      });
      INFO("gradient of " << worst_gradient.second);
      CHECK(worst_logits <= bound);
      CHECK(worst_gradient.first <= bound);
    }
  }
}

// A loss in the dtype of the logits: the mean over the labels of the whole batch, whatever part of it the rows are.
at::Tensor LossOf(const at::Tensor& logits, const at::Tensor& labels, int64_t counted) {
  const at::Tensor wanted = labels.slice(1, 1).reshape(-1);
  const at::Tensor given = logits.slice(1, 0, logits.size(1) - 1).flatten(0, 1);
  return at::cross_entropy_loss(given, wanted, {}, at::Reduction::Sum, -100) / static_cast<double>(counted);
}

struct Step {
  double loss = 0;
  NamedTensors gradients;  // full
};

// One step in float64 on rows that the data-parallel ranks and micro-batches share.
Step RunStep(const ContextSetup& setup, const DeviceMesh& mesh, const at::Tensor& ids, const at::Tensor& labels,
             ShardedModel& sharded) {
  const int64_t ranks = mesh.shape().data_ranks();
  const int64_t rows = ids.size(0) / (ranks * setup.micros);
  const int64_t counted = labels.slice(1, 1).ne(-100).sum().item<int64_t>();
  Step out;
  for (int64_t micro = 0; micro < setup.micros; ++micro) {
    const int64_t first = (mesh.shape().DataCoordinate(mesh.rank()) * setup.micros + micro) * rows;
    sharded.applied->SetGradientSync(micro + 1 == setup.micros);
    const at::Tensor own = ids.narrow(0, first, rows);
    const at::Tensor logits = sharded.model.forward(own, std::nullopt, std::nullopt);
    // ddp and fsdp take the mean over the data-parallel ranks.
    const at::Tensor loss = LossOf(logits, labels.narrow(0, first, rows), counted) * static_cast<double>(ranks);
    loss.backward();
    out.loss += loss.item<double>() / static_cast<double>(ranks);
  }
  for (const LiveParameter& parameter : sharded.applied->parameters()) {
    out.gradients[parameter.path] = GatherFull(*sharded.applied, parameter, parameter.tensor.grad());
  }
  return out;
}

at::Tensor Ids(int64_t rows, int64_t tokens, int64_t vocabulary) {
  return (at::arange(rows * tokens) * 7 + 3).remainder(vocabulary).view({rows, tokens});
}

constexpr int64_t kRows = 12;
constexpr int64_t kTokens = 13;  // neither 2 nor 4 divides it

TEST_CASE("context parallelism in float64 gives the numbers of one rank", "[float64]") {
  std::vector<ContextSetup> setups;
  for (const char* checkpoint : {"llama_gqa", "llama_bias", "qwen3_head_dim12", "gemma3_softcap", "phi3_gqa"}) {
    setups.push_back({checkpoint, "cp=4"});
    setups.push_back({checkpoint, "cp=2,tp=2", true});
    setups.push_back({checkpoint, "cp=2,tp=2", false, R"(recompute { "model.layers.*" })"});
    setups.push_back({checkpoint, "dp_shard=2,cp=2", false, "", 2});
    // 3 times 2 ranks do not divide the 64 rows of most weights.
    setups.push_back({checkpoint, "dp_shard=3,cp=2"});
  }
  const std::string recomputed = R"(recompute { "model.layers.*" })";
  const std::string selective = R"(recompute { "model.layers.*", keep = { "attention", "every_second_matmul" } })";
  const std::string sharded = R"(fsdp { wrap = "model.layers.*", reshard = true })";
  setups.push_back({"llama_gqa", "cp=2", false, recomputed, 4});
  setups.push_back({"llama_gqa", "cp=2,tp=2", true, selective});
  setups.push_back({"llama_gqa", "dp_shard=2,cp=2", false, "ddp {}", 2});
  setups.push_back({"llama_gqa", "dp_replicate=2,dp_shard=2,cp=2", false, "ddp {}"});
  setups.push_back({"llama_gqa", "dp_shard=2,cp=2", false, R"(fsdp { wrap = "model.layers.*", reshard = 2 })", 2});
  setups.push_back({"llama_gqa", "dp_shard=2,cp=2,tp=2", true, sharded + ", " + recomputed, 2});
  setups.push_back({"llama_gqa", "dp_replicate=2,dp_shard=2,cp=2", false, sharded});
  const std::vector<ContextSetup> exchanging = setups;
  for (ContextSetup setup : exchanging) {
    setup.context = "ring";
    setups.push_back(std::move(setup));
  }
  setups.push_back({"mistral_window8", "cp=4", false, "", 1, "ring"});
  setups.push_back({"mixtral", "cp=4", false, "", 1, "ring"});
  setups.push_back({"qwen2_moe", "cp=2,tp=2", true, recomputed, 1, "ring"});
  setups.push_back({"qwen2_moe_window", "cp=2", false, "", 2});
  setups.push_back({"llama_gqa", "cp=8", false, recomputed, 2, "ring"});
  setups.push_back({"llama_gqa", "cp=2", false, R"(recompute { "model.layers.*.self_attn" })", 1, "ring"});
  setups.push_back({"llama_gqa", "cp=4", false, "", 2, "plain_ring"});
  setups.push_back({"qwen3_head_dim12", "cp=2,tp=2", true, recomputed, 1, "plain_ring"});
  for (const char* checkpoint :
       {"llama_gqa", "qwen3_head_dim12", "gemma3_softcap", "phi3_gqa", "mistral_window8", "mixtral"}) {
    setups.push_back({checkpoint, "cp=2x2", false, "", 1, "ulysses_ring"});
    setups.push_back({checkpoint, "cp=2x2,tp=2", true, recomputed, 1, "ulysses_ring"});
  }
  setups.push_back({"llama_gqa", "cp=2x2", false, selective, 2, "ulysses_ring"});
  setups.push_back({"llama_gqa", "cp=2x4", false, recomputed, 2, "ulysses_ring"});
  setups.push_back({"llama_gqa", "cp=4x2", false, "", 1, "ulysses_ring"});
  setups.push_back({"llama_gqa", "cp=3x2", false, R"(recompute { "model.layers.*.self_attn" })", 1, "ulysses_ring"});
  setups.push_back({"llama_gqa", "dp_shard=2,cp=2x2", false, "", 2, "ulysses_ring"});
  setups.push_back({"llama_gqa", "dp_shard=2,cp=2x2", false, "ddp {}", 2, "ulysses_ring"});
  setups.push_back(
      {"llama_gqa", "dp_shard=2,cp=2x2", false, R"(fsdp { wrap = "model.layers.*", reshard = 2 })", 2, "ulysses_ring"});
  std::map<std::string, Step> alone;
  for (const ContextSetup& setup : setups) {
    DYNAMIC_SECTION(setup.Name()) {
      const JsonValue config = ReadConfig(SourcePath("tests/parity/" + setup.checkpoint));
      const at::Tensor ids = Ids(kRows, kTokens, config.Find("vocab_size")->AsInt());
      at::Tensor labels = ids.clone();
      labels[0].slice(0, 5) = -100;
      if (!alone.contains(setup.checkpoint)) {
        RunRanks("tp=1", [&](DeviceMesh& mesh) {
          ShardedModel model = LoadInContext({setup.checkpoint, "tp=1"}, mesh, at::kDouble);
          alone[setup.checkpoint] = RunStep({setup.checkpoint, "tp=1"}, mesh, ids, labels, model);
        });
      }
      const Step& want = alone[setup.checkpoint];
      std::mutex mutex;
      double loss = 0;
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        ShardedModel model = LoadInContext(setup, mesh, at::kDouble);
        const Step got = RunStep(setup, mesh, ids, labels, model);
        const std::lock_guard lock(mutex);
        loss += got.loss / static_cast<double>(mesh.shape().size(MeshAxis::kCp) * mesh.shape().size(MeshAxis::kTp));
        for (const auto& [path, gradient] : got.gradients) {
          const double error = RelativeError(gradient, want.gradients.at(path));
          Expect(error <= 1e-9, "the gradient of " + path + " differs by " + std::to_string(error));
        }
      });
      CHECK(std::abs(loss - want.loss) <= 1e-9 * want.loss);
    }
  }
}

// Rows of the documents of `lengths`, which are the same in each row.
at::Tensor Documents(const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < lengths.size(); ++i) parts.push_back(at::full({1, lengths[i]}, 7 - static_cast<int64_t>(i)));
  return at::cat(parts, 1);
}

// Documents of 6, 1, 3 and 5 of 15 tokens: on two and four ranks, chunks end inside documents, and one is of a single
// token. 15 positions have other rotary frequencies in phi3_longrope than those of a document.
TEST_CASE("a row of several documents has the numbers of each document alone, on one rank and in every context") {
  const std::string checkpoint = GENERATE("llama_gqa", "gemma3_softcap", "ministral3_yarn", "mixtral", "phi3_longrope");
  const std::vector<int64_t> lengths = {6, 1, 3, 5};
  constexpr int64_t kPacked = 15;
  const JsonValue config = ReadConfig(SourcePath("tests/parity/" + checkpoint));
  const at::Tensor ids = Ids(4, kPacked, config.Find("vocab_size")->AsInt());
  const at::Tensor documents = Documents(lengths);
  const at::Tensor labels = LabelsWithin(ids, documents);
  const int64_t counted = labels.slice(1, 1).ne(-100).sum().item<int64_t>();
  REQUIRE(counted == 4 * (kPacked - 4));
  at::Tensor logits;
  Step want;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    ShardedModel alone = LoadInContext({checkpoint, "tp=1"}, mesh, at::kDouble);
    std::vector<at::Tensor> parts;
    int64_t first = 0;
    for (const int64_t length : lengths) {
      const at::Tensor own = ids.narrow(1, first, length);
      parts.push_back(alone.model.forward(own, std::nullopt, std::nullopt));
      if (length > 1) {
        const at::Tensor loss = LossOf(parts.back(), own, counted);
        loss.backward();
        want.loss += loss.item<double>();
      }
      first += length;
    }
    logits = at::cat(parts, 1).detach();
    for (const LiveParameter& parameter : alone.applied->parameters())
      want.gradients[parameter.path] = parameter.tensor.grad().clone();
  });
  std::vector<ContextSetup> setups = {{checkpoint, "tp=1"}, {checkpoint, "tp=2", true}};
  for (const char* context : {"ulysses", "ring"}) {
    setups.push_back({checkpoint, "cp=4", false, "", 1, context});
    setups.push_back({checkpoint, "cp=2,tp=2", true, "", 2, context});
    setups.push_back({checkpoint, "cp=2", false, R"(recompute { "model.layers.*" })", 4, context});
  }
  setups.push_back({checkpoint, "cp=2x2", false, "", 1, "ulysses_ring"});
  setups.push_back({checkpoint, "cp=2x2,tp=2", true, R"(recompute { "model.layers.*" })", 2, "ulysses_ring"});
  for (const ContextSetup& setup : setups) {
    INFO(setup.Name());
    RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
      ShardedModel model = LoadInContext(setup, mesh, at::kDouble);
      const int64_t rows = ids.size(0) / setup.micros;
      double loss = 0;
      for (int64_t micro = 0; micro < setup.micros; ++micro) {
        const auto part = [&](const at::Tensor& of) { return of.narrow(0, micro * rows, rows); };
        const at::Tensor got = model.model.packed(part(ids), documents, std::nullopt, std::nullopt);
        Expect(RelativeError(got.detach(), part(logits)) <= 1e-9, "the logits");
        const at::Tensor one = LossOf(got, part(labels), counted);
        one.backward();
        loss += one.item<double>();
      }
      Expect(std::abs(loss - want.loss) <= 1e-9 * want.loss, "the loss");
      for (const LiveParameter& parameter : model.applied->parameters()) {
        const at::Tensor gradient = GatherFull(*model.applied, parameter, parameter.tensor.grad());
        Expect(RelativeError(gradient, want.gradients.at(parameter.path)) <= 1e-9, "the gradient of " + parameter.path);
      }
    });
  }
}

// Chunks of 1, 1, 1 and no token; on cp=2x2 the second rank of the first group has none.
TEST_CASE("fewer tokens than ranks of cp leave a rank without tokens") {
  const std::string context = GENERATE("ulysses", "ring", "plain_ring", "ulysses_ring");
  const at::Tensor ids = Ids(2, 3, 64);
  Step want;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    ShardedModel model = LoadInContext({"llama_gqa", "tp=1"}, mesh, at::kDouble);
    want = RunStep({"llama_gqa", "tp=1"}, mesh, ids, ids, model);
  });
  const ContextSetup setup{"llama_gqa", context == "ulysses_ring" ? "cp=2x2" : "cp=4", false, "", 1, context};
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    ShardedModel model = LoadInContext(setup, mesh, at::kDouble);
    const Step got = RunStep(setup, mesh, ids, ids, model);
    Expect(std::abs(got.loss - want.loss) <= 1e-9, "the loss");
    for (const auto& [path, gradient] : got.gradients) {
      Expect(RelativeError(gradient, want.gradients.at(path)) <= 1e-9, "the gradient of " + path);
    }
  });
}

// The first row of two begins with padding, the second row ends with it.
at::Tensor PaddedAtBothEnds(int64_t tokens) {
  at::Tensor mask = at::ones({2, tokens}, at::kLong);
  mask[0].slice(0, 0, tokens / 3).zero_();
  mask[1].slice(0, tokens - tokens / 4).zero_();
  return mask;
}

// The mean square of the logits of the tokens, and its gradients.
Step SquaresOf(ShardedModel& model, const at::Tensor& ids, const std::optional<at::Tensor>& mask) {
  for (const LiveParameter& parameter : model.applied->parameters()) parameter.tensor.mutable_grad().reset();
  const at::Tensor logits = model.model.forward(ids, mask, std::nullopt);
  const at::Tensor shown = mask ? mask->unsqueeze(-1) : at::ones({1});
  const at::Tensor loss = (logits * shown).pow(2).mean();
  loss.backward();
  Step out{loss.item<double>(), {}};
  for (const LiveParameter& parameter : model.applied->parameters()) {
    out.gradients[parameter.path] = GatherFull(*model.applied, parameter, parameter.tensor.grad());
  }
  return out;
}

TEST_CASE("a ring attends in sequences of every length, with and without padding") {
  const auto [checkpoint, mesh_text, context] =
      GENERATE(table<std::string, std::string, std::string>({{"llama_gqa", "cp=4", "ring"},
                                                             {"mistral_window8", "cp=3", "ring"},
                                                             {"mistral_window8", "cp=3", "plain_ring"},
                                                             {"gemma3_softcap", "cp=2,tp=2", "ring"},
                                                             {"phi3_gqa", "cp=8", "ring"},
                                                             {"llama_gqa", "cp=2x2", "ulysses_ring"},
                                                             {"mistral_window8", "cp=3x2", "ulysses_ring"},
                                                             {"gemma3_softcap", "cp=2x2,tp=2", "ulysses_ring"},
                                                             {"phi3_gqa", "cp=4x2", "ulysses_ring"}}));
  const ContextSetup setup{checkpoint, mesh_text, false, "", 1, context};
  constexpr int64_t kLongest = 17;
  std::vector<Step> want;
  const auto run = [&](ShardedModel& model, const std::function<void(Step)>& take) {
    for (int64_t tokens = 1; tokens <= kLongest; ++tokens) {
      take(SquaresOf(model, Ids(2, tokens, 60), std::nullopt));
      take(SquaresOf(model, Ids(2, tokens, 60), PaddedAtBothEnds(tokens)));
      take(SquaresOf(model, Ids(2, tokens, 60), PaddedAtBothEnds(tokens).slice(0, 1)));  // one row for both
    }
  };
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    ShardedModel model = LoadInContext({checkpoint, "tp=1"}, mesh, at::kDouble);
    run(model, [&](Step step) { want.push_back(std::move(step)); });
  });
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    ShardedModel model = LoadInContext(setup, mesh, at::kDouble);
    size_t at = 0;
    run(model, [&](const Step& got) {
      const std::string where = std::to_string(at / 3 + 1) + (at % 3 > 0 ? " padded tokens: " : " tokens: ");
      Expect(std::abs(got.loss - want[at].loss) <= 1e-9 * want[at].loss, where + "the loss");
      // A gradient that is zero but for rounding (of the keys of a single token) has no error relative to itself.
      double largest = 0;
      for (const auto& [path, gradient] : want[at].gradients) {
        largest = std::max(largest, gradient.abs().max().item<double>());
      }
      for (const auto& [path, gradient] : got.gradients) {
        const double error = (gradient - want[at].gradients.at(path)).abs().max().item<double>();
        Expect(error <= 1e-9 * largest, where + "the gradient of " + path);
      }
      ++at;
    });
  });
}

TEST_CASE("a ring drops no attention weights: evaluation ignores the dropout, training is refused") {
  const ContextSetup setup{"llama_gqa", "cp=2", false, "", 1, "ring", 0.25};
  const auto failures = RunRanksFailing(setup.mesh, [&](DeviceMesh& mesh) {
    const ShardedModel model = LoadInContext(setup, mesh, std::nullopt);
    model.model.module->eval();
    Expect(model.model.forward(Ids(1, 5, 64), std::nullopt, std::nullopt).isfinite().all().item<bool>(), "logits");
    model.model.module->train();
    model.model.forward(Ids(1, 5, 64), std::nullopt, std::nullopt);
  });
  REQUIRE(failures.size() == 2);
  // The other rank may see only that its peer is gone.
  const auto refused = std::ranges::find_if(
      failures, [](const RankFailure& failure) { return failure.text.find("MS0506") != std::string::npos; });
  REQUIRE(refused != failures.end());
  CHECK_THAT(refused->text, Catch::Contains("attention on a ring cannot drop"));
  CHECK_THAT(refused->text, Catch::Contains("attention_dropout = 0.25, in training"));
  CHECK_THAT(refused->text, Catch::Contains("at: model.layers.0.self_attn"));
}

TEST_CASE("ranks of cp that receive other tokens are found") {
  const auto failures = RunRanksFailing("cp=2", [](DeviceMesh& mesh) {
    const ShardedModel model = LoadInContext({"llama_gqa", "cp=2"}, mesh, std::nullopt);
    model.model.forward(Ids(kRows, kTokens, 63) + mesh.rank(), std::nullopt, std::nullopt);
  });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) {
    CHECK_THAT(failure.text, Catch::Contains("the inputs of the model itself"));
    CHECK_THAT(failure.text, Catch::Contains("MS0507"));
  }
}

TEST_CASE("a gradient that is not summed over cp is found") {
  const ContextSetup setup{"llama_gqa", "cp=2", false, "ddp {}"};
  const std::string forgotten = "model.layers.1.post_attention_layernorm.weight";
  const at::Tensor ids = Ids(kRows, kTokens, 64);
  Step want;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    ShardedModel model = LoadInContext({"llama_gqa", "tp=1"}, mesh, at::kDouble);
    want = RunStep({"llama_gqa", "tp=1"}, mesh, ids, ids, model);
  });
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    ShardedModel model = LoadInContext(setup, mesh, at::kDouble, [&](CompiledPlan& plan) {
      const auto m = static_cast<size_t>(plan.tree->Find("model.layers.1.post_attention_layernorm"));
      plan.layouts.push_back(plan.LayoutsOf(m));
      plan.layouts.back().params[0][MeshAxis::kCp] = Layout::Replicate();
      plan.layouts_of[m] = static_cast<uint32_t>(plan.layouts.size()) - 1;
    });
    const Step got = RunStep(setup, mesh, ids, ids, model);
    for (const auto& [path, gradient] : got.gradients) {
      const double error = RelativeError(gradient, want.gradients.at(path));
      Expect((path == forgotten) == (error > 1e-2), path + " differs by " + std::to_string(error));
    }
  });
}

}  // namespace
}  // namespace moonshard::test
