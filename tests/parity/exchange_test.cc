// Expert parallelism (experts.block with parallel = "exchange") on thread ranks: recorded checkpoints under their shipped
// plans against what transformers computed, and in float64 against one rank: logits, loss, every gradient, and the
// collectives that explain predicts. A model with stacked experts, which no recorded checkpoint has, is made here.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/plan/compile/cost.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/parity/setup.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

struct ExchangeSetup {
  std::string checkpoint;  // "stacked": StackedNet
  std::string mesh;
  bool sequence_parallel = false;
  std::string sections;  // of the plan, beside the shipped one's
  int64_t micros = 1;
  std::string Name() const {
    return checkpoint + " " + mesh + (sequence_parallel ? " sequence parallel" : "") +
           (sections.empty() ? "" : " " + sections) +
           (micros > 1 ? " in " + std::to_string(micros) + " micro-batches" : "");
  }
};

ShardedModel LoadWithExchange(const ExchangeSetup& setup, const DeviceMesh& mesh,
                              std::optional<c10::ScalarType> dtype) {
  const std::filesystem::path folder = SourcePath("tests/parity/" + setup.checkpoint);
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
  inputs.options["context"] = std::string("ulysses");
  inputs.options["sequence_parallel"] = setup.sequence_parallel;
  const std::string family = std::filesystem::path(SelectPlan(config).ValueOrThrow()).stem().string();
  const Plan plan =
      EvaluatePlan("return plan { extends \"" + family + "\", " + setup.sections + " }", "exchange.lua", inputs)
          .ValueOrThrow();
  out.applied = ParallelizeModule(*out.model.module, plan, mesh, {.deferred_type = dtype});
  Expect(LoadCheckpoint(*out.applied, Checkpoint::Open(folder.string()).ValueOrThrow()).empty(),
         "the checkpoint fits without a warning");
  return out;
}

// The rows of this rank in micro-batch `micro`.
at::Tensor RowsOf(const at::Tensor& all, const DeviceMesh& mesh, int64_t micros = 1, int64_t micro = 0) {
  const int64_t parts = mesh.shape().data_ranks() * micros;
  Expect(all.size(0) % parts == 0, "the rows are not shared evenly");
  const int64_t rows = all.size(0) / parts;
  return all.narrow(0, (mesh.shape().DataCoordinate(mesh.rank()) * micros + micro) * rows, rows);
}

// The mean over the labels of the whole batch, `counted` of them, of which the rows are a part; in the dtype of the
// logits.
at::Tensor TermOfLoss(const at::Tensor& logits, const at::Tensor& labels, int64_t counted) {
  const at::Tensor wanted = labels.slice(1, 1).reshape(-1);
  const at::Tensor given = logits.slice(1, 0, logits.size(1) - 1).flatten(0, 1);
  return at::cross_entropy_loss(given, wanted, {}, at::Reduction::Sum, -100) / static_cast<double>(counted);
}

int64_t CountedIn(const at::Tensor& labels) { return labels.slice(1, 1).ne(-100).sum().item<int64_t>(); }

// What explain predicts is what ran. `rows` of this rank in each of `micros` forwards and backwards.
void ExpectCollectives(const AppliedPlan& applied, int64_t rows, int64_t tokens, int64_t micros = 1) {
  const PlanTotals totals = TotalsOf(applied.plan(), applied.mesh().rank(), Tokens{rows, tokens});
  const CollectiveCounts counts = applied.counts();
  Expect(applied.plan().mesh.size(MeshAxis::kEp) == 1 ||
             counts.of(Direction::kBackward, CollectiveKind::kAllToAll).count > 0,
         "tokens are exchanged");
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      CollectiveCount expected = totals.collectives.of(direction, kind);
      expected = {expected.count * micros, expected.bytes * micros};
      const CollectiveCount& got = counts.of(direction, kind);
      // A block of experts owns no parameter that tells how wide what it redistributes is (compile/cost.h).
      const bool more = kind != CollectiveKind::kAllToAll && got.count == expected.count && got.bytes > expected.bytes;
      Expect(got == expected || more, std::string(ToString(kind)) + " " + ToString(direction) + ": " +
                                          std::to_string(got.count) + " of " + std::to_string(got.bytes) +
                                          " bytes ran, " + std::to_string(expected.count) + " of " +
                                          std::to_string(expected.bytes) + " were predicted");
    }
  }
}

// The rows that all experts of a module received are those that all ranks sent.
void ExpectAllTokensSent(const AppliedPlan& applied, int64_t rows, int64_t per_token) {
  AxisGroup& group = applied.group(MeshAxis::kEp);
  const CollectiveLabel label("sent rows");
  const std::vector<ExpertLoad> loads = applied.expert_loads();
  Expect(!loads.empty(), "no module exchanged tokens");
  for (const ExpertLoad& load : loads) {
    const auto received =
        group.ExchangeNumbers(std::accumulate(load.received.begin(), load.received.end(), int64_t{0}), label);
    const auto sent = group.ExchangeNumbers(rows * per_token, label);
    Expect(load.dropped == 0 && std::accumulate(received.begin(), received.end(), int64_t{0}) ==
                                    std::accumulate(sent.begin(), sent.end(), int64_t{0}),
           load.path + " lost or doubled tokens");
  }
}

// ep=4: the last rank has none of the five experts of qwen3_moe and qwen2_moe.
std::vector<ExchangeSetup> RecordedExchanges() {
  std::vector<ExchangeSetup> out;
  for (const char* checkpoint : {"mixtral", "qwen3_moe", "qwen3_moe_unnormalized", "qwen2_moe", "qwen2_moe_window"}) {
    for (const char* mesh : {"ep=2", "ep=2,tp=2", "ep=2,cp=2"}) out.push_back({checkpoint, mesh});
    out.push_back({checkpoint, "ep=2,tp=2", true});
    out.push_back({checkpoint, "ep=2", false, "ddp {}"});
    out.push_back({checkpoint, "ep=2", false, R"(recompute { "model.layers.*" })"});
  }
  for (const char* checkpoint : {"mixtral", "qwen3_moe", "qwen2_moe"}) {
    out.push_back({checkpoint, "ep=4"});
    out.push_back({checkpoint, "dp_shard=2,ep=2"});
    out.push_back({checkpoint, "dp_shard=2,ep=2", false, "ddp {}"});
  }
  return out;
}

TEST_CASE("an exchange of tokens gives the numbers of transformers") {
  for (const ExchangeSetup& setup : RecordedExchanges()) {
    DYNAMIC_SECTION(setup.Name()) {
      const std::filesystem::path folder = SourcePath("tests/parity/" + setup.checkpoint);
      const int64_t per_token = ReadConfig(folder).Find("num_experts_per_tok")->AsInt();
      double worst_logits = 0;
      std::pair<double, std::string> worst_gradient = {0, ""};
      std::mutex mutex;
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        const ShardedModel sharded = LoadWithExchange(setup, mesh, std::nullopt);
        for (const std::string suffix : {"_1", "_2"}) {
          const NamedTensors inputs = ReadTensors(folder / ("inputs" + suffix + ".safetensors"));
          const NamedTensors expected = ReadTensors(folder / ("expected" + suffix + ".safetensors"));
          const auto ranks = mesh.shape().data_ranks();
          if (inputs.at("input_ids").size(0) % ranks != 0) continue;
          for (const LiveParameter& parameter : sharded.applied->parameters()) parameter.tensor.mutable_grad().reset();
          sharded.applied->ClearCounts();
          const at::Tensor ids = RowsOf(inputs.at("input_ids"), mesh);
          const at::Tensor logits = sharded.model.forward(ids, std::nullopt, std::nullopt);
          const int64_t counted = CountedIn(inputs.at("labels"));
          // ddp and fsdp take the mean over the data-parallel ranks.
          const at::Tensor loss =
              TermOfLoss(logits, RowsOf(inputs.at("labels"), mesh), counted) * static_cast<double>(ranks);
          loss.backward();
          ExpectCollectives(*sharded.applied, ids.size(0), ids.size(1));
          if (mesh.shape().size(MeshAxis::kCp) == 1) ExpectAllTokensSent(*sharded.applied, ids.numel(), per_token);
          const double error = RelativeError(logits.detach(), RowsOf(expected.at("logits"), mesh));
          for (const LiveParameter& parameter : sharded.applied->parameters()) {
            const at::Tensor full = GatherFull(*sharded.applied, parameter, parameter.tensor.grad());
            const std::pair of = {RelativeError(full, expected.at("grad." + parameter.path)), parameter.path};
            const std::lock_guard lock(mutex);
            worst_gradient = std::max(worst_gradient, of);
          }
          const std::lock_guard lock(mutex);
          worst_logits = std::max(worst_logits, error);
        }
        Expect(sharded.applied->Findings().empty(), "every planned module was called");
      });
      const double bound = RecordedBound(folder / "expected_1.safetensors");
      CHECK(bound < 2e-4);
      INFO("gradient of " << worst_gradient.second);
      CHECK(worst_logits <= bound);
      CHECK(worst_gradient.first <= bound);
    }
  }
}

// The all-to-alls that ran when a shared expert begins, and when its backward begins.
struct SharedExpertTrace final : CallObserver {
  explicit SharedExpertTrace(const AppliedPlan& applied) : applied(applied) {}
  int64_t SoFar(Direction direction) const { return applied.counts().of(direction, CollectiveKind::kAllToAll).count; }
  bool IsAt(size_t module, const char* name) const {
    return applied.plan().tree->modules()[module].path.ends_with(name);
  }
  void Entered(size_t module, std::span<const TensorSlot> /*arguments*/) override {
    if (IsAt(module, ".shared_expert.gate_proj")) forward.push_back(SoFar(Direction::kForward));
  }
  void Made(size_t module, std::span<const TensorSlot> results) override {
    if (!IsAt(module, ".shared_expert.down_proj") || !results.front().tensor->requires_grad()) return;
    results.front().tensor->register_hook([this](const at::Tensor& gradient) {
      backward.push_back(SoFar(Direction::kBackward));
      return gradient;
    });
  }
  const AppliedPlan& applied;
  std::vector<int64_t> forward;
  std::vector<int64_t> backward;
};

// Of the three all-to-alls of a layer's forward the counts and the rows start before the shared expert, and of the two
// of its backward both, of which the second is still on its way. The second runs of recomputed layers begin with the
// last one.
TEST_CASE("tokens travel while the shared expert computes") {
  using Counts = std::vector<int64_t>;
  struct Row {
    std::string sections;
    Counts forward;
  };
  const std::vector<Row> rows = {
      {"", {2, 5}},
      {R"(recompute { "model.layers.*" })", {2, 5, 8, 11}},
      {R"(recompute { "model.layers.*.mlp" })", {2, 5, 8, 11}},
      {R"(recompute { "model.layers.*", keep_modules = "model.layers.*.mlp.experts" })", {2, 5, 8, 11}},
      {R"(recompute { "model.layers.*.mlp.experts" })", {0, 3}},  // sends again in the backward
      {R"(keep_dtype("model.layers.*.mlp.experts", "float64"))", {0, 3}},
  };
  for (const Row& row : rows) {
    for (const char* mesh_text : {"ep=2", "ep=2,tp=2", "dp_shard=2,ep=2"}) {
      INFO(mesh_text << " " << row.sections);
      RunRanks(mesh_text, [&](DeviceMesh& mesh) {
        const ShardedModel sharded =
            LoadWithExchange({"qwen2_moe", mesh_text, false, row.sections}, mesh, std::nullopt);
        SharedExpertTrace trace(*sharded.applied);
        sharded.applied->Watch(trace, /*all=*/true);
        const at::Tensor ids = at::arange(10).view({2, 5}) + mesh.shape().DataCoordinate(mesh.rank());
        sharded.model.forward(ids, std::nullopt, std::nullopt).sum().backward();
        sharded.applied->Unwatch(trace);
        Expect(trace.forward == row.forward, "the all-to-alls before the shared expert");
        Expect(trace.backward == Counts{2, 4}, "the all-to-alls before its backward");
      });
    }
  }
}

TEST_CASE("an exchange while an adapter is active that is not trained has no gradients") {
  const std::string sections = R"(lora { at = "model.layers.*.self_attn.q_proj", rank = 2, name = "first" },
                                  lora { at = "model.layers.*.self_attn.q_proj", rank = 2, name = "second" })";
  for (const char* recompute : {"", R"(, recompute { "model.layers.*" })"}) {
    INFO(recompute);
    RunRanks("ep=2", [&](DeviceMesh& mesh) {
      const ShardedModel sharded =
          LoadWithExchange({"mixtral", "ep=2", false, sections + recompute}, mesh, at::kDouble);
      const at::Tensor ids = ReadTensors(SourcePath("tests/parity/mixtral/inputs_1.safetensors")).at("input_ids");
      const auto forward = [&] { return sharded.model.forward(ids, std::nullopt, std::nullopt); };
      const at::Tensor before = forward();
      Expect(before.requires_grad(), "the trained adapter is active");
      sharded.applied->SetActiveAdapter("second");
      const at::Tensor other = forward();
      Expect(!other.requires_grad(), "the outputs of an adapter that is not trained require no gradient");
      Expect(other.equal(before.detach()), "the term of a new adapter is zero");
      sharded.applied->SetActiveAdapter("first");
      forward().square().sum().backward();
      for (const LiveParameter& parameter : sharded.applied->parameters()) {
        if (!parameter.path.ends_with(".lora_B.first")) continue;
        Expect(parameter.tensor.grad().count_nonzero().item<int64_t>() > 0, "a gradient of " + parameter.path);
      }
    });
  }
}

constexpr int64_t kStackedHidden = 8;
constexpr int64_t kStackedSize = 6;  // features of an expert
constexpr int64_t kStackedVocabulary = 24;

// Gated experts as parameters with an entry for each expert.
struct StackedExpertsImpl : torch::nn::Module {
  explicit StackedExpertsImpl(int64_t experts) {
    gate_up_proj = register_parameter("gate_up_proj", at::empty({experts, 2 * kStackedSize, kStackedHidden}));
    down_proj = register_parameter("down_proj", at::empty({experts, kStackedHidden, kStackedSize}));
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights) {
    at::Tensor sum = at::zeros_like(tokens);
    for (int64_t i = 0; i < gate_up_proj.size(0); ++i) {
      const at::Tensor places = ids.eq(i).nonzero();
      const at::Tensor token = places.select(1, 0);
      const std::vector<at::Tensor> parts = at::linear(tokens.index_select(0, token), gate_up_proj[i]).chunk(2, -1);
      const at::Tensor result = at::linear(at::silu(parts[0]) * parts[1], down_proj[i]);
      const at::Tensor weight = weights.index({token, places.select(1, 1)}).unsqueeze(-1);
      sum = sum.index_add(0, token, (result * weight).to(sum.scalar_type()));
    }
    return sum;
  }
  at::Tensor gate_up_proj, down_proj;
};
MOONSHARD_MODULE(StackedExperts);

struct StackedBlockImpl : torch::nn::Module {
  explicit StackedBlockImpl(int64_t experts) {
    gate = register_module("gate", nn::Linear(torch::nn::LinearOptions(kStackedHidden, experts).bias(false)));
    this->experts = register_module("experts", StackedExperts(experts));
  }
  at::Tensor forward(const at::Tensor& hidden) {
    const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)});
    const auto [weights, ids] = at::topk(at::softmax(gate(tokens), -1), 2);
    return experts(tokens, ids, weights).view(hidden.sizes());
  }
  nn::Linear gate = nullptr;
  StackedExperts experts = nullptr;
};
MOONSHARD_MODULE(StackedBlock);

struct StackedLayerImpl : torch::nn::Module {
  explicit StackedLayerImpl(int64_t experts) { mlp = register_module("mlp", StackedBlock(experts)); }
  at::Tensor forward(const at::Tensor& hidden) { return hidden + mlp(hidden); }
  StackedBlock mlp = nullptr;
};
MOONSHARD_MODULE(StackedLayer);

// Embedding, two blocks of five and of four experts, a head.
struct StackedNetImpl : torch::nn::Module {
  StackedNetImpl() {
    embed = register_module("embed", nn::Embedding(torch::nn::EmbeddingOptions(kStackedVocabulary, kStackedHidden)));
    first = register_module("first", StackedLayer(5));
    second = register_module("second", StackedLayer(4));
    head =
        register_module("head", nn::Linear(torch::nn::LinearOptions(kStackedHidden, kStackedVocabulary).bias(false)));
    const at::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(3);
    for (at::Tensor& parameter : parameters()) {
      parameter.set_data(at::randn(parameter.sizes(), generator, at::TensorOptions(at::kDouble)) * 0.5);
    }
  }
  at::Tensor forward(const at::Tensor& ids) { return head(second(first(embed(ids)))); }
  nn::Embedding embed = nullptr;
  StackedLayer first = nullptr;
  StackedLayer second = nullptr;
  nn::Linear head = nullptr;
};
MOONSHARD_MODULE(StackedNet);

std::shared_ptr<AppliedPlan> ApplyToStacked(const ExchangeSetup& setup, const DeviceMesh& mesh, StackedNetImpl& net) {
  const LiveTree live = ReadLiveTree(net).ValueOrThrow();
  PlanInputs inputs;
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  const std::string text = R"(
local transformer <const> = require "transformer"
local experts <const> = require "experts"
local stream <const> = transformer.stream {
  sequence_parallel = )" + std::string(setup.sequence_parallel ? "true" : "false") +
                           R"(, loss_parallel = false, stable = false,
}
return plan {
  at("embed", vocab_rowwise { output = stream.residual }),
  experts.block("{first,second}.mlp", stream, { size = 6, parallel = "exchange", per_token = 2, features = 8 }),
  at("head", colwise { input = stream.residual, output = replicate }),
  )" + (setup.sections.empty() ? R"(fsdp { wrap = "{first,second}" })" : setup.sections) +
                           " }";
  return ParallelizeModule(net, EvaluatePlan(text, "stacked.lua", inputs).ValueOrThrow(), mesh);
}

struct ExchangedStep {
  double loss = 0;
  NamedTensors gradients;  // full
};

constexpr int64_t kExchangeRows = 12;
constexpr int64_t kExchangeTokens = 13;

// One step in float64 on rows that the data-parallel ranks and micro-batches share.
ExchangedStep StepWithExchange(const ExchangeSetup& setup, const DeviceMesh& mesh) {
  const bool stacked = setup.checkpoint == "stacked";
  ShardedModel sharded;
  std::optional<StackedNet> net;
  int64_t vocabulary = kStackedVocabulary;
  if (stacked) {
    net.emplace();
    sharded.applied = ApplyToStacked(setup, mesh, **net);
  } else {
    vocabulary = ReadConfig(SourcePath("tests/parity/" + setup.checkpoint)).Find("vocab_size")->AsInt();
    sharded = LoadWithExchange(setup, mesh, at::kDouble);
  }
  const at::Tensor ids = (at::arange(kExchangeRows * kExchangeTokens) * 7 + 3)
                             .remainder(vocabulary)
                             .view({kExchangeRows, kExchangeTokens});
  at::Tensor labels = ids.clone();
  labels[0].slice(0, 5) = -100;
  const auto ranks = static_cast<double>(mesh.shape().data_ranks());
  ExchangedStep out;
  for (int64_t micro = 0; micro < setup.micros; ++micro) {
    sharded.applied->SetGradientSync(micro + 1 == setup.micros);
    const at::Tensor own = RowsOf(ids, mesh, setup.micros, micro);
    const at::Tensor logits = stacked ? (*net)(own) : sharded.model.forward(own, std::nullopt, std::nullopt);
    const at::Tensor loss = TermOfLoss(logits, RowsOf(labels, mesh, setup.micros, micro), CountedIn(labels)) * ranks;
    loss.backward();
    out.loss += loss.item<double>() / ranks;
    // A recorded model is planned in float32, and in float64 only here.
    if (stacked && setup.micros == 1) ExpectCollectives(*sharded.applied, own.size(0), own.size(1));
  }
  for (const LiveParameter& parameter : sharded.applied->parameters()) {
    out.gradients[parameter.path] = GatherFull(*sharded.applied, parameter, parameter.tensor.grad());
  }
  return out;
}

ExchangedStep StepAlone(const std::string& checkpoint, const std::string& sections = "") {
  ExchangedStep out;
  RunRanks("tp=1", [&](DeviceMesh& mesh) { out = StepWithExchange({checkpoint, "tp=1", false, sections}, mesh); });
  return out;
}

// The step on the mesh is that of one rank.
void ExpectStepOf(const ExchangeSetup& setup, const ExchangedStep& want, double bound) {
  std::mutex mutex;
  double loss = 0;
  RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
    const ExchangedStep got = StepWithExchange(setup, mesh);
    const std::lock_guard lock(mutex);
    loss += got.loss / static_cast<double>(mesh.shape().size(MeshAxis::kCp) * mesh.shape().size(MeshAxis::kTp));
    Expect(got.gradients.size() == want.gradients.size(), "another number of parameters");
    for (const auto& [path, gradient] : got.gradients) {
      const double error = RelativeError(gradient, want.gradients.at(path));
      Expect(error <= bound, "the gradient of " + path + " differs by " + std::to_string(error));
    }
  });
  CHECK(std::abs(loss - want.loss) <= bound * want.loss);
}

TEST_CASE("an exchange of tokens in float64 gives the numbers of one rank", "[float64]") {
  const std::string recomputed = R"(recompute { "model.layers.*" })";
  const std::string layers = R"(fsdp { wrap = "model.layers.*", reshard = true })";
  std::vector<ExchangeSetup> setups;
  for (const char* checkpoint : {"mixtral", "qwen3_moe", "qwen2_moe"}) {
    setups.push_back({checkpoint, "ep=2"});
    setups.push_back({checkpoint, "ep=3"});
    setups.push_back({checkpoint, "ep=4", false, "ddp {}"});
    setups.push_back({checkpoint, "ep=2,tp=2"});
    setups.push_back({checkpoint, "ep=2,tp=2", true, recomputed});
    setups.push_back({checkpoint, "ep=2", false, recomputed, 3});
    setups.push_back({checkpoint, "ep=2", false, "ddp {}", 2});
    setups.push_back({checkpoint, "dp_shard=2,ep=2"});
    setups.push_back({checkpoint, "dp_shard=2,ep=2", false, layers + ", " + recomputed, 3});
    setups.push_back({checkpoint, "dp_shard=2,ep=2", false, "ddp { bucket = false }"});
    setups.push_back({checkpoint, "dp_shard=3,ep=2"});  // does not divide the rows of most weights
    setups.push_back({checkpoint, "dp_replicate=2,ep=2"});
    setups.push_back({checkpoint, "ep=2,cp=2"});
    setups.push_back({checkpoint, "ep=2,cp=2", false, "ddp {}"});
  }
  setups.push_back({"mixtral", "dp_shard=2,ep=2,tp=2", true, layers + ", " + recomputed, 3});
  setups.push_back({"qwen2_moe", "dp_shard=2,ep=2,tp=2", true, layers + ", " + recomputed, 3});
  setups.push_back({"qwen2_moe", "dp_shard=2,ep=2,cp=2", false, "ddp {}"});
  setups.push_back({"qwen2_moe", "ep=2,cp=2,tp=2", true});
  setups.push_back({"qwen2_moe", "ep=2", false, R"(recompute { "model.layers.*.mlp.experts" })"});
  setups.push_back({"qwen2_moe", "ep=2", false, R"(recompute { "model.layers.*.mlp" })"});
  setups.push_back(
      {"qwen2_moe", "ep=2", false, R"(recompute { "model.layers.*", keep_modules = "model.layers.*.mlp.experts" })"});
  setups.push_back({"qwen2_moe", "dp_shard=2,ep=2", false,
                    R"(fsdp { wrap = { "model.layers.*", "model.layers.*.mlp.shared_expert" }, reshard = true })"});
  setups.push_back({"mixtral", "dp_shard=2,ep=2,cp=2"});
  setups.push_back({"mixtral", "ep=2,cp=2,tp=2", true});
  setups.push_back({"mixtral", "ep=2", false,
                    R"(recompute { "model.layers.*", keep_modules = "model.layers.*.block_sparse_moe.experts" })"});
  setups.push_back(
      {"mixtral", "ep=2", false, R"(recompute { "model.layers.*", keep = { "attention", "every_second_matmul" } })"});
  setups.push_back({"mixtral", "ep=2", false, R"(recompute { "model.layers.*.block_sparse_moe.experts" })"});
  setups.push_back(
      {"mixtral", "dp_shard=2,ep=2", false, R"(fsdp { wrap = "model.layers.*", accumulate = "shards" })", 3});
  setups.push_back({"mixtral", "dp_shard=2,ep=2", false,
                    R"(fsdp { wrap = "model.layers.*.block_sparse_moe.experts.*", reshard = true })"});
  setups.push_back({"mixtral", "dp_shard=2,ep=2", false,
                    R"(fsdp { wrap = "model.layers.*", ignore = "model.layers.*.block_sparse_moe.experts.**" })"});
  setups.push_back({"mixtral", "ep=2", false, R"(fsdp { wrap = "model.layers.*", gradients = "mean" })", 2});
  const std::string ddp = "ddp {}";
  for (const char* mesh : {"ep=2", "ep=3", "ep=4", "ep=2,tp=2", "ep=4,tp=3"}) {
    setups.push_back({"stacked", mesh, false, ddp});
    setups.push_back({"stacked", mesh, true});
  }
  setups.push_back({"stacked", "dp_shard=2,ep=2"});
  setups.push_back({"stacked", "dp_shard=2,ep=2", false, ddp, 3});
  setups.push_back({"stacked", "dp_shard=3,ep=2,tp=2", true, R"(fsdp { wrap = "{first,second}", reshard = true })", 2});
  setups.push_back({"stacked", "dp_shard=2,ep=2", false, R"(fsdp { wrap = "{first,second}" }, recompute { "first" })"});
  setups.push_back({"stacked", "dp_replicate=3,dp_shard=2,ep=2"});
  static std::map<std::string, ExchangedStep> alone;  // the body runs once for each section
  for (const ExchangeSetup& setup : setups) {
    DYNAMIC_SECTION(setup.Name()) {
      if (!alone.contains(setup.checkpoint)) alone[setup.checkpoint] = StepAlone(setup.checkpoint);
      ExpectStepOf(setup, alone[setup.checkpoint], 1e-9);
    }
  }
}

// In float32 on parameters of float64: the tokens that are sent are in float32.
TEST_CASE("an exchange of tokens computes in the dtype that the plan declares") {
  const std::string cast = R"(precision { parameters = "float32", reduce = "float64", outputs = "float64" })";
  const std::filesystem::path folder = SourcePath("tests/parity/mixtral");
  const ExchangedStep want = StepAlone("mixtral");
  for (const ExchangeSetup& setup :
       {ExchangeSetup{"mixtral", "ep=2", false, cast},
        {"mixtral", "dp_shard=2,ep=2,tp=2", true, cast},
        {"mixtral", "ep=2", false, cast + R"(, keep_dtype("model.layers.*.block_sparse_moe.experts", "float64"))"}}) {
    DYNAMIC_SECTION(setup.Name()) {
      ExpectStepOf(setup, want, RecordedBound(folder / "expected_1.safetensors"));
      // Really another computation.
      RunRanks("tp=1", [&](DeviceMesh& mesh) {
        Expect(StepWithExchange({"mixtral", "tp=1", false, cast}, mesh).loss != want.loss, "computed in float32");
      });
    }
  }
}

// The same rows on both ranks: experts receive each token twice, and the gradient is twice that of one rank.
TEST_CASE("experts receive the tokens of all ranks of ep") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    const ShardedModel sharded = LoadWithExchange({"mixtral", "ep=2"}, mesh, at::kDouble);
    const at::Tensor ids = at::arange(10).view({2, 5});
    sharded.model.forward(ids, std::nullopt, std::nullopt).sum().backward();
    for (const ExpertLoad& load : sharded.applied->expert_loads()) {
      Expect(load.received.size() == 2, "two experts of four");
      for (const int64_t rows : load.received) Expect(rows % 2 == 0, "each token twice");
    }
    ExpectAllTokensSent(*sharded.applied, 10, 2);
    sharded.applied->ClearCounts();
    Expect(sharded.applied->expert_loads().empty(), "cleared with the counts");
  });
}

TEST_CASE("a backward that repeats a forward counts its tokens once") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    const ShardedModel sharded =
        LoadWithExchange({"mixtral", "ep=2", false, R"(recompute { "model.layers.*" })"}, mesh, at::kDouble);
    const at::Tensor ids = at::arange(10).view({2, 5}) + mesh.rank();
    sharded.model.forward(ids, std::nullopt, std::nullopt).sum().backward();
    ExpectAllTokensSent(*sharded.applied, 10, 2);
  });
}

}  // namespace
}  // namespace moonshard::test
