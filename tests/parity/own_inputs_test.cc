// Inputs of a rank's own tokens (transformer.stream { inputs = "own" }) on thread ranks: recorded checkpoints against
// what transformers computed, and in float64 against one rank: logits, loss, every gradient, and the collectives. Each
// rank of cp is given nothing but its own tokens: ids, masks, positions, documents and labels.
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
#include "engine/models/logits.h"
#include "engine/models/router_losses.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/redistribute/redistribute.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "engine/train/loss/sequence_loss.h"
#include "engine/train/loss/vocabulary_of.h"
#include "tests/engine/models/fixture.h"
#include "tests/parity/setup.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

struct OwnSetup {
  std::string checkpoint;
  std::string mesh;
  std::string context = "ulysses";
  bool sequence_parallel = false;
  bool loss_parallel = false;
  std::string sections = {};  // of the plan, beside the shipped one's
  int64_t micros = 1;
  std::string Name() const {
    return checkpoint + " " + context + " " + mesh + (sequence_parallel ? " sequence parallel" : "") +
           (loss_parallel ? " loss parallel" : "") + (sections.empty() ? "" : " " + sections) +
           (micros > 1 ? " in " + std::to_string(micros) + " micro-batches" : "");
  }
};

// A model under its shipped plan with own inputs, and what a trainer has beside it.
struct OwnModel {
  ShardedModel sharded;
  TokenShards sequence;
  std::optional<Vocabulary> vocabulary;
  Logits logits;

  const AppliedPlan& applied() const { return *sharded.applied; }
  at::Tensor Take(const at::Tensor& full) const { return sequence.Take(full); }
  std::optional<at::Tensor> Take(const std::optional<at::Tensor>& full) const {
    return full ? std::optional(sequence.Take(*full)) : std::nullopt;
  }
  // The logits of this rank's own tokens; all arguments are of the full sequence.
  at::Tensor Forward(const at::Tensor& ids, const std::optional<at::Tensor>& mask = {},
                     const std::optional<at::Tensor>& positions = {},
                     const std::optional<at::Tensor>& documents = {}) const {
    const CausalLm& model = sharded.model;
    return documents ? model.packed(Take(ids), *Take(documents), Take(mask), Take(positions))
                     : model.forward(Take(ids), Take(mask), Take(positions));
  }
  at::Tensor Loss(const at::Tensor& own_logits, const at::Tensor& labels, LossReduction reduction,
                  const std::optional<at::Tensor>& documents = {}) const {
    const OwnTargets targets = ShiftTargets(sequence, Take(labels), Take(documents));
    return CrossEntropy(*vocabulary, sequence, own_logits, targets, {.reduction = reduction});
  }
  // [B, t, v] of this rank -> [B, T, V].
  at::Tensor Full(const at::Tensor& own, int64_t tokens) const {
    at::Tensor out = own;
    const auto gather = [&](MeshAxis axis, const Layout& layout, int64_t size) {
      if (applied().plan().mesh.size(axis) == 1 || layout == Layout::Replicate()) return;
      out = TensorRedistribution::Make(layout, Layout::Replicate(), AxisGroup::Make(applied().mesh(), axis),
                                       {size, -1, "full logits", 1})
                .ValueOrThrow()(out);
    };
    gather(MeshAxis::kTp, logits.layout, logits.vocabulary);
    gather(MeshAxis::kCp, logits.sequence, tokens);
    return out;
  }
};

OwnModel LoadOwn(const OwnSetup& setup, const DeviceMesh& mesh, std::optional<c10::ScalarType> dtype,
                 const std::string& given = "own") {
  const std::filesystem::path folder = SourcePath("tests/parity/" + setup.checkpoint);
  const JsonValue config = ReadConfig(folder);
  OwnModel out;
  {
    const nn::DeferInit defer;
    out.sharded.model = MakeCausalLm(config).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*out.sharded.model.module).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  inputs.options["context"] = setup.context;
  inputs.options["inputs"] = given;
  inputs.options["sequence_parallel"] = setup.sequence_parallel;
  inputs.options["loss_parallel"] = setup.loss_parallel;
  const std::string family = std::filesystem::path(SelectPlan(config).ValueOrThrow()).stem().string();
  Plan plan = EvaluatePlan("return plan { extends \"" + family + "\", " + setup.sections + " }", "own.lua", inputs)
                  .ValueOrThrow();
  CompiledPlan compiled =
      ResolvePlan(std::make_shared<const Plan>(std::move(plan)), live.tree, mesh.shape()).ValueOrThrow();
  out.sharded.applied = AppliedPlan::Apply(live, std::move(compiled), mesh, {.deferred_type = dtype});
  Expect(LoadCheckpoint(*out.sharded.applied, Checkpoint::Open(folder.string()).ValueOrThrow()).empty(),
         "the checkpoint fits without a warning");
  out.sequence = TokenShards::Of(out.applied());
  out.logits = LogitsOf(out.sharded.model, out.applied().plan());
  out.vocabulary = VocabularyOf(out.applied(), out.logits.layout, out.logits.vocabulary, "lm_head").ValueOrThrow();
  return out;
}

void ForgetGradients(const OwnModel& model) {
  for (const LiveParameter& parameter : model.applied().parameters()) parameter.tensor.mutable_grad().reset();
}

NamedTensors FullGradients(const OwnModel& model) {
  NamedTensors out;
  for (const LiveParameter& parameter : model.applied().parameters()) {
    out[parameter.path] = GatherFull(model.applied(), parameter, parameter.tensor.grad());
  }
  return out;
}

// What explain predicts is what ran, and beside it one all-gather of the optional inputs, `rows` rows of int64.
void ExpectOwnAsPredicted(const OwnModel& model, int64_t batch, int64_t tokens, int64_t rows, bool experts,
                          bool windows) {
  const CollectiveCounts& counts = model.applied().counts();
  const PlanTotals totals = TotalsOf(model.applied().plan(), model.applied().mesh().rank(), Tokens{batch, tokens});
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      CollectiveCount expected = totals.collectives.of(direction, kind);
      if (direction == Direction::kForward && kind == CollectiveKind::kAllGather && rows > 0) {
        ++expected.count;
        expected.bytes += rows * tokens * int64_t{sizeof(int64_t)};
      }
      const CollectiveCount& got = counts.of(direction, kind);
      // As in context_test.cc: of experts the width is not known, of some layers' windows the keys.
      const bool more = experts && got.count == expected.count && got.bytes > expected.bytes;
      const bool fewer =
          windows && kind == CollectiveKind::kAllToAll && got.count <= expected.count && got.bytes <= expected.bytes;
      Expect(got == expected || more || fewer, std::string(ToString(kind)) + " " + ToString(direction) + ": " +
                                                   std::to_string(got.count) + " of " + std::to_string(got.bytes) +
                                                   " bytes ran, " + std::to_string(expected.count) + " of " +
                                                   std::to_string(expected.bytes) + " were predicted");
    }
  }
}

void ExpectLossCounts(const TokenShards& sequence, int64_t batch) {
  const CollectiveCounts& counts = sequence.group->counts();
  const int64_t chunks = sequence.layout.zigzag ? 2 : 1;
  const int64_t bytes = sequence.group->size() * chunks * batch * int64_t{sizeof(int64_t)};
  Expect(counts.of(Direction::kForward, CollectiveKind::kAllGather) == CollectiveCount{1, bytes}, "the first labels");
  Expect(counts.of(Direction::kForward, CollectiveKind::kAllReduce) == CollectiveCount{1, 2 * int64_t{sizeof(double)}},
         "the loss and its count");
}

std::vector<OwnSetup> RecordedOwnSetups() {
  std::vector<OwnSetup> out;
  for (const char* checkpoint : {"llama_gqa", "qwen3_head_dim12", "gemma3_softcap", "mixtral"}) {
    for (const char* context : {"ulysses", "ring", "plain_ring"}) {
      for (const char* mesh : {"cp=2", "cp=4"}) out.push_back({checkpoint, mesh, context});
      out.push_back({checkpoint, "cp=2,tp=2", context, true, true});
      out.push_back({checkpoint, "dp_shard=2,cp=2", context});
    }
    out.push_back({checkpoint, "cp=2,tp=2", "ring", false, true});
    out.push_back({checkpoint, "cp=2,tp=2", "ulysses"});
  }
  for (const char* checkpoint : {"phi3_longrope", "ministral3_yarn", "mistral_window8"}) {
    out.push_back({checkpoint, "cp=4", "ring"});
    out.push_back({checkpoint, "cp=2", "ulysses"});
  }
  return out;
}

TEST_CASE("own inputs give the numbers of transformers") {
  for (const OwnSetup& setup : RecordedOwnSetups()) {
    DYNAMIC_SECTION(setup.Name()) {
      const std::filesystem::path folder = SourcePath("tests/parity/" + setup.checkpoint);
      const double bound = RecordedBound(folder / "expected_1.safetensors");
      const JsonValue config = ReadConfig(folder);
      const bool experts = config.Find("num_experts_per_tok") != nullptr;
      const bool windows = config.Find("layer_types") != nullptr && setup.context != "ulysses";
      double worst_logits = 0;
      std::pair<double, std::string> worst_gradient = {0, ""};
      std::mutex mutex;
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        const OwnModel model = LoadOwn(setup, mesh, std::nullopt);
        for (const std::string suffix : {"_1", "_2", "_padded", "_packed"}) {
          if (!std::filesystem::exists(folder / ("inputs" + suffix + ".safetensors"))) continue;
          const NamedTensors inputs = ReadTensors(folder / ("inputs" + suffix + ".safetensors"));
          const NamedTensors expected = ReadTensors(folder / ("expected" + suffix + ".safetensors"));
          int64_t rows = 0;
          const auto optional = [&](const char* name) {
            const auto found = inputs.find(name);
            if (found != inputs.end()) rows += found->second.size(0);
            return found == inputs.end() ? std::nullopt : std::optional(found->second);
          };
          ForgetGradients(model);
          model.sharded.applied->ClearCounts();
          model.sequence.group->ClearCounts();
          const at::Tensor& ids = inputs.at("input_ids");
          const std::optional<at::Tensor> mask = optional("attention_mask");
          const std::optional<at::Tensor> positions = optional("position_ids");
          const std::optional<at::Tensor> documents = optional("document_ids");
          const at::Tensor own = model.Forward(ids, mask, positions, documents);
          const at::Tensor loss = model.Loss(own, inputs.at("labels"), LossReduction::kMean);
          loss.backward();
          ExpectOwnAsPredicted(model, ids.size(0), ids.size(1), rows, experts, windows);
          ExpectLossCounts(model.sequence, ids.size(0));
          const at::Tensor shown = mask ? mask->unsqueeze(-1) : at::ones({1});
          const at::Tensor logits = model.Full(own.detach(), ids.size(1));
          const double logits_error = std::max(RelativeError(logits * shown, expected.at("logits") * shown),
                                               RelativeError(loss.detach(), expected.at("loss")));
          std::pair<double, std::string> gradient = {0, ""};
          for (const auto& [path, full] : FullGradients(model)) {
            gradient = std::max(gradient, {RelativeError(full, expected.at("grad." + path)), path});
          }
          const std::lock_guard lock(mutex);
          worst_logits = std::max(worst_logits, logits_error);
          worst_gradient = std::max(worst_gradient, gradient);
        }
        Expect(model.applied().Findings().empty(), "every planned module was called");
      });
      INFO("gradient of " << worst_gradient.second);
      CHECK(worst_logits <= bound);
      CHECK(worst_gradient.first <= bound);
    }
  }
}

at::Tensor SomeIds(int64_t rows, int64_t tokens, int64_t vocabulary) {
  return (at::arange(rows * tokens) * 7 + 3).remainder(vocabulary).view({rows, tokens});
}

struct OwnStep {
  double loss = 0;
  NamedTensors gradients;  // full
};

// The mean over all labels; data-parallel ranks and micro-batches share the rows.
OwnStep StepOf(const OwnSetup& setup, const OwnModel& model, const at::Tensor& ids, const at::Tensor& labels) {
  const DeviceMesh& mesh = model.applied().mesh();
  const int64_t ranks = mesh.shape().data_ranks();
  const int64_t rows = ids.size(0) / (ranks * setup.micros);
  const auto counted = static_cast<double>(labels.slice(1, 1).ne(-100).sum().item<int64_t>());
  ForgetGradients(model);
  OwnStep out;
  for (int64_t micro = 0; micro < setup.micros; ++micro) {
    const int64_t first = (mesh.shape().DataCoordinate(mesh.rank()) * setup.micros + micro) * rows;
    model.sharded.applied->SetGradientSync(micro + 1 == setup.micros);
    const at::Tensor own = model.Forward(ids.narrow(0, first, rows));
    const at::Tensor loss =
        model.Loss(own, labels.narrow(0, first, rows), LossReduction::kSum) * (static_cast<double>(ranks) / counted);
    loss.backward();
    out.loss += loss.item<double>() / static_cast<double>(ranks);
  }
  out.gradients = FullGradients(model);
  return out;
}

// A gradient that is zero but for rounding (of the keys of a single token) has no error relative to itself.
void ExpectSame(const OwnStep& got, const OwnStep& want, const std::string& where) {
  Expect(std::abs(got.loss - want.loss) <= 1e-9 * std::abs(want.loss), where + ": the loss");
  double largest = 0;
  for (const auto& [path, gradient] : want.gradients) {
    largest = std::max(largest, gradient.abs().max().item<double>());
  }
  for (const auto& [path, gradient] : got.gradients) {
    const double error = (gradient - want.gradients.at(path)).abs().max().item<double>();
    Expect(error <= 1e-9 * largest, where + ": the gradient of " + path + " differs by " + std::to_string(error));
  }
}

TEST_CASE("own inputs in float64 give the numbers of one rank", "[float64]") {
  std::vector<OwnSetup> setups;
  const std::string recomputed = R"(recompute { "model.layers.*" })";
  const std::string sharded = R"(fsdp { wrap = "model.layers.*", reshard = true })";
  for (const char* context : {"ulysses", "ring", "plain_ring"}) {
    setups.push_back({"llama_gqa", "cp=4", context});
    setups.push_back({"llama_gqa", "cp=2,tp=2", context, true, true, recomputed});
    setups.push_back({"llama_gqa", "dp_shard=2,cp=2", context, false, false, sharded + ", " + recomputed, 2});
    setups.push_back({"llama_gqa", "dp_shard=2,cp=2", context, false, true, "ddp {}", 3});
    setups.push_back({"gemma3_softcap", "cp=2", context, false, false, recomputed, 4});
    setups.push_back({"mixtral", "cp=4", context, false, false, "", 2});
  }
  setups.push_back({"llama_gqa", "cp=2", "ring", false, false, R"(recompute { "model" })", 2});
  setups.push_back({"llama_gqa", "dp_shard=2,cp=2,tp=2", "ring", true, true, sharded, 2});
  std::map<std::string, OwnStep> alone;
  for (const OwnSetup& setup : setups) {
    DYNAMIC_SECTION(setup.Name()) {
      const JsonValue config = ReadConfig(SourcePath("tests/parity/" + setup.checkpoint));
      const at::Tensor ids = SomeIds(12, 13, config.Find("vocab_size")->AsInt());
      at::Tensor labels = ids.clone();
      labels[0].slice(0, 5) = -100;
      if (!alone.contains(setup.checkpoint)) {
        RunRanks("tp=1", [&](DeviceMesh& mesh) {
          const OwnSetup one{setup.checkpoint, "tp=1"};
          alone[setup.checkpoint] = StepOf(one, LoadOwn(one, mesh, at::kDouble), ids, labels);
        });
      }
      std::mutex mutex;
      OwnStep got;
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        const OwnModel model = LoadOwn(setup, mesh, at::kDouble);
        OwnStep step = StepOf(setup, model, ids, labels);
        const std::lock_guard lock(mutex);
        const int64_t sharing = mesh.shape().world_size() / mesh.shape().data_ranks();  // ranks with the same rows
        got.loss += step.loss / static_cast<double>(sharing);
        got.gradients = std::move(step.gradients);
        ExpectSame({alone[setup.checkpoint].loss, got.gradients}, alone[setup.checkpoint], "a rank");
      });
      CHECK(std::abs(got.loss - alone[setup.checkpoint].loss) <= 1e-9 * alone[setup.checkpoint].loss);
    }
  }
}

// Padding at both ends, positions that begin at 3, documents of which one is of a single token, on every length: also
// ones that cp does not divide, and of fewer tokens than ranks.
struct Optionals {
  std::optional<at::Tensor> mask, positions, documents;
};

std::vector<Optionals> OptionalsOf(int64_t tokens) {
  at::Tensor mask = at::ones({2, tokens}, at::kLong);
  mask[0].slice(0, 0, tokens / 3).zero_();
  mask[1].slice(0, tokens - tokens / 4).zero_();
  at::Tensor documents = at::arange(tokens).div(4, "floor").unsqueeze(0).repeat({2, 1});
  documents[1].slice(0, 0, 1).fill_(9);
  const at::Tensor begin_anew = at::arange(tokens).remainder(5).unsqueeze(0);
  return {{},
          {mask, {}, {}},
          {mask.slice(0, 1), at::arange(3, 3 + tokens).unsqueeze(0), {}},
          {{}, {}, documents},
          {mask, {}, documents.slice(0, 0, 1)},
          {{}, begin_anew, {}}};
}

TEST_CASE("own masks, positions and documents give the numbers of one rank in sequences of every length") {
  const auto [checkpoint, mesh_text, context] =
      GENERATE(table<std::string, std::string, std::string>({{"llama_gqa", "cp=4", "ulysses"},
                                                             {"gemma3_softcap", "cp=2", "ulysses"},
                                                             {"mistral_window8", "cp=3", "ring"},
                                                             {"mistral_window8", "cp=3", "plain_ring"},
                                                             {"gemma3_softcap", "cp=2,tp=2", "ring"},
                                                             {"phi3_longrope", "cp=4", "ring"}}));
  const OwnSetup setup{checkpoint, mesh_text, context};
  const auto run = [](const OwnModel& model, const std::function<void(OwnStep)>& take) {
    for (int64_t tokens = 2; tokens <= 14; tokens += 1) {
      for (const Optionals& given : OptionalsOf(tokens)) {
        ForgetGradients(model);
        const at::Tensor ids = SomeIds(2, tokens, 60);
        const at::Tensor labels = given.mask ? ids.masked_fill(given.mask->eq(0), -100) : ids;
        const at::Tensor own = model.Forward(ids, given.mask, given.positions, given.documents);
        const at::Tensor loss = model.Loss(own, labels, LossReduction::kSum, given.documents);
        loss.backward();
        take({loss.item<double>(), FullGradients(model)});
      }
    }
  };
  std::vector<OwnStep> want;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    run(LoadOwn({checkpoint, "tp=1"}, mesh, at::kDouble), [&](OwnStep step) { want.push_back(std::move(step)); });
  });
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    size_t at = 0;
    run(LoadOwn(setup, mesh, at::kDouble), [&](const OwnStep& got) {
      ExpectSame(got, want[at], std::to_string(at / 6 + 2) + " tokens, inputs " + std::to_string(at % 6));
      ++at;
    });
  });
}

// The loss of full rows on one rank is that of CausalLmLoss, also of documents.
TEST_CASE("on one rank targets are shifted as the loss of transformers does") {
  RunRanks("tp=1", [](DeviceMesh& mesh) {
    const OwnModel model = LoadOwn({"llama_gqa", "tp=1"}, mesh, at::kDouble);
    const at::Tensor ids = SomeIds(2, 9, 64);
    const at::Tensor documents = at::arange(9).div(4, "floor").unsqueeze(0);
    const at::Tensor logits = model.Forward(ids, {}, {}, documents);
    const at::Tensor want = CausalLmLoss(logits, LabelsWithin(ids, documents));
    const at::Tensor got = model.Loss(logits, ids, LossReduction::kMean, documents);
    Expect(std::abs((got - want).item<double>()) <= 1e-12, "the loss");
  });
}

TEST_CASE(
    "labels that are shifted within a rank's own tokens, and positions that begin at 0 on every rank, are found") {
  const std::string context = GENERATE("ulysses", "ring", "plain_ring");
  const at::Tensor ids = SomeIds(2, 12, 64);
  double want = 0;
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const OwnModel model = LoadOwn({"llama_gqa", "tp=1"}, mesh, at::kDouble);
    want = model.Loss(model.Forward(ids), ids, LossReduction::kMean).item<double>();
  });
  RunRanks("cp=2", [&](DeviceMesh& mesh) {
    const OwnModel model = LoadOwn({"llama_gqa", "cp=2", context}, mesh, at::kDouble);
    const at::NoGradGuard no_grad;
    const at::Tensor logits = model.Forward(ids);
    Expect(std::abs(model.Loss(logits, ids, LossReduction::kMean).item<double>() - want) <= 1e-9, "the right loss");
    const OwnTargets within{at::constant_pad_nd(model.Take(ids).slice(1, 1), {0, 1}, -100)};
    const double shifted = CrossEntropy(*model.vocabulary, model.sequence, logits, within).item<double>();
    Expect(std::abs(shifted - want) > 1e-3, "a shift within the chunk has another loss");
    const at::Tensor from_zero = at::arange(model.Take(ids).size(1)).unsqueeze(0);
    const at::Tensor mask = at::ones_like(model.Take(ids));  // the positions show no documents
    const at::Tensor other = model.sharded.model.forward(model.Take(ids), mask, from_zero);
    Expect(std::abs(model.Loss(other, ids, LossReduction::kMean).item<double>() - want) > 1e-5,
           "positions of the rank alone have another loss");
  });
}

struct WrongCall {
  std::string what;
  std::function<void(const OwnModel&, int64_t rank)> run;
  std::string finding;
  std::string text;
};

// Every rank throws, and none waits for the others; the same ranks then run a right step.
TEST_CASE("own inputs that differ between ranks or do not fit are errors on every rank") {
  const at::Tensor ids = SomeIds(2, 8, 60);
  const auto forward = [](const OwnModel& model, const at::Tensor& own, const std::optional<at::Tensor>& mask = {},
                          const std::optional<at::Tensor>& positions = {}) {
    model.sharded.model.forward(own, mask, positions);
  };
  const std::vector<WrongCall> wrong = {
      {"lengths", [&](const OwnModel& model, int64_t rank) { forward(model, ids.narrow(1, 0, rank == 0 ? 3 : 5)); },
       "MS0507", "own tokens of lengths [3, 5]"},
      {"batch", [&](const OwnModel& model, int64_t rank) { forward(model, ids.narrow(0, 0, rank + 1).slice(1, 4)); },
       "MS0507", "the inputs of the model itself"},
      {"a mask on one rank",
       [&](const OwnModel& model, int64_t rank) {
         const at::Tensor own = ids.slice(1, 4);
         forward(model, own, rank == 0 ? std::optional(at::ones_like(own)) : std::nullopt);
       },
       "MS0507", "the inputs of the model itself"},
      {"a mask on one rank, positions on the other",
       [&](const OwnModel& model, int64_t rank) {
         const at::Tensor own = ids.slice(1, 4);
         const std::optional<at::Tensor> given = at::ones_like(own);
         forward(model, own, rank == 0 ? given : std::nullopt, rank == 0 ? std::nullopt : given);
       },
       "MS0507", "rows of input_ids, position_ids of 2"},
      {"a mask that does not fit on one rank",
       [&](const OwnModel& model, int64_t rank) {
         forward(model, ids.slice(1, 4), at::ones({2, 4 + rank}, at::kLong));
       },
       "MS0507", "attention_mask [2, 5] that does not fit"},
      {"a mask that fits on no rank",
       [&](const OwnModel& model, int64_t /*rank*/) {
         forward(model, ids.slice(1, 4), at::ones({2, 5}, at::kLong));
       },
       "MS0508", "'attention_mask' does not fit this rank's own tokens"},
      {"labels of other lengths",
       [&](const OwnModel& model, int64_t rank) { ShiftTargets(model.sequence, ids.narrow(1, 0, rank == 0 ? 3 : 5)); },
       "MS0507", "own tokens of lengths [3, 5]"},
      {"labels of another batch",
       [&](const OwnModel& model, int64_t rank) { ShiftTargets(model.sequence, ids.narrow(0, 0, rank + 1)); }, "MS0507",
       "rows of labels"},
      {"targets that do not fit the logits",
       [&](const OwnModel& model, int64_t rank) {
         CrossEntropy(*model.vocabulary, model.sequence, at::zeros({2, 4, 64}), OwnTargets{ids.narrow(1, 0, 4 + rank)});
       },
       "MS0507", "own targets that do not fit"},
      {"a target that is no id, on one rank",
       [&](const OwnModel& model, int64_t rank) {
         const at::Tensor targets = rank == 0 ? ids.slice(1, 4) : ids.slice(1, 4) + 1000;
         CrossEntropy(*model.vocabulary, model.sequence, at::zeros({2, 4, 64}), OwnTargets{targets});
       },
       "MS0507", "own targets that do not fit"},
      {"a target that is no id, on all ranks",
       [&](const OwnModel& model, int64_t /*rank*/) {
         CrossEntropy(*model.vocabulary, model.sequence, at::zeros({2, 4, 64}), OwnTargets{ids.slice(1, 4) + 1000});
       },
       "MS0508", "targets from 0 to 63, or ignore_index"},
  };
  const std::string context = GENERATE("ulysses", "ring");
  for (const WrongCall& call : wrong) {
    INFO(call.what);
    std::mutex mutex;
    std::vector<std::string> texts;
    RunRanks("cp=2", [&](DeviceMesh& mesh) {
      const OwnModel model = LoadOwn({"llama_gqa", "cp=2", context}, mesh, std::nullopt);
      std::string text;
      try {
        call.run(model, mesh.rank());
      } catch (const PlanError& error) {
        text = error.what();
      }
      Expect(model.Forward(ids).isfinite().all().item<bool>(), "a right call after the wrong one");
      const std::lock_guard lock(mutex);
      texts.push_back(std::move(text));
    });
    for (const std::string& text : texts) {
      CHECK_THAT(text, Catch::Contains(call.finding));
      CHECK_THAT(text, Catch::Contains(call.text));
    }
  }
}

// The sums of the routers are over the rows of all ranks, with the padding of each rank's own mask.
TEST_CASE("the losses of routers of own inputs are those of one rank") {
  const std::string context = GENERATE("ulysses", "ring");
  const at::Tensor ids = SomeIds(2, 11, 60);
  at::Tensor mask = at::ones({2, 11}, at::kLong);
  mask[1].slice(0, 6).zero_();
  const auto step = [&](const OwnModel& model) {
    RouterLosses& routers = *model.sharded.model.routers;
    routers.SetCoefficients({0.3, 0.02});
    routers.Bind(*model.sharded.model.module, model.applied());
    const at::Tensor own = model.Forward(ids, mask);
    const at::Tensor of_routers = *routers.Loss();
    (model.Loss(own, ids, LossReduction::kMean) + of_routers).backward();
    return OwnStep{of_routers.item<double>(), FullGradients(model)};
  };
  OwnStep want;
  RunRanks("tp=1", [&](DeviceMesh& mesh) { want = step(LoadOwn({"mixtral", "tp=1"}, mesh, at::kDouble)); });
  RunRanks("cp=4", [&](DeviceMesh& mesh) {
    ExpectSame(step(LoadOwn({"mixtral", "cp=4", context}, mesh, at::kDouble)), want, context);
  });
}

}  // namespace
}  // namespace moonshard::test
