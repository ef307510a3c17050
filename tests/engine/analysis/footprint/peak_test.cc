// The peak of a training step as predicted on the meta device, against what a counting allocator sees of the same step
// with values: every reference architecture, with and without sequence parallelism, loss parallelism and recomputation.
#include <catch2/catch.hpp>

#include <cmath>
#include <iostream>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/analysis/footprint/step_recorder.h"
#include "engine/analysis/meta/meta_scope.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "engine/train/loss/losses.h"
#include "engine/train/loss/vocabulary_of.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

// Divided by every number of experts that the fixtures have, and by tp.
constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 100;

struct Setup {
  std::filesystem::path folder;
  std::string mesh = "tp=2";
  bool sequence_parallel = false;
  bool loss_parallel = false;
  std::string recompute;  // "", "layers", "attention": layers but for attention's results
  bool fsdp = false;
  std::string context = {};  // "ulysses", "ring"
  int64_t rank = 0;
  at::ScalarType type = at::kFloat;
  bool owned_experts = false;
  bool exchange = false;  // of tokens, on ep; with four experts, which ep divides
  bool ddp = false;
  std::string Name() const {
    return folder.filename().string() + " " + mesh + (sequence_parallel ? " sequence_parallel" : "") +
           (loss_parallel ? " loss_parallel" : "") + (recompute.empty() ? "" : " recompute " + recompute) +
           (fsdp ? " fsdp" : "") + (context.empty() ? "" : " " + context + ", rank " + std::to_string(rank)) +
           (owned_experts ? " owned experts, rank " + std::to_string(rank) : "") +
           (exchange ? " exchange, rank " + std::to_string(rank) : "") + (ddp ? " ddp" : "");
  }
};

struct Model {
  CausalLm net;
  std::shared_ptr<AppliedPlan> applied;
};

JsonValue ConfigOf(const Setup& setup) {
  JsonValue config = ReadConfig(setup.folder);
  if (!setup.exchange) return config;
  for (const char* key : {"num_local_experts", "num_experts"}) {
    if (config.Find(key) != nullptr) config.AsObject().at(key) = JsonValue(int64_t{4});
  }
  return config;
}

Model Make(const Setup& setup, c10::Device device, ApplyOptions options) {
  options.deferred_type = setup.type;
  const JsonValue config = ConfigOf(setup);
  Model out;
  {
    const nn::DeferInit defer;
    out.net = MakeCausalLm(config).ValueOrThrow();
  }
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse(setup.mesh).ValueOrThrow(), setup.rank, device);
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  const LiveTree live = ReadLiveTree(*out.net.module).ValueOrThrow();
  inputs.model = live.tree.get();
  inputs.options["sequence_parallel"] = setup.sequence_parallel;
  inputs.options["loss_parallel"] = setup.loss_parallel;
  if (!setup.context.empty()) inputs.options["context"] = setup.context;
  if (setup.owned_experts) inputs.options["expert_parallel"] = true;
  if (setup.exchange) inputs.options["exchange"] = true;
  Plan plan = LoadPlanFile(SelectPlan(config).ValueOrThrow(), inputs).ValueOrThrow();
  if (!setup.recompute.empty()) {
    Recomputed section;
    section.modules = {{"model.layers.*"}};
    section.keeps_attention = setup.recompute == "attention";
    plan.recompute.push_back(section);
  }
  if (setup.fsdp) plan.data_parallel.emplace().wrap = {{"model.layers.*"}};
  if (setup.ddp) plan.data_parallel.emplace().shards = false;
  out.applied = ParallelizeModule(*out.net.module, plan, mesh, options);
  return out;
}

at::Tensor Loss(const Model& model, const at::Tensor& ids) {
  const Vocabulary vocabulary = VocabularyOf(*model.applied, "lm_head").ValueOrThrow();
  return CrossEntropy(vocabulary, model.net.forward(ids, {}, {}), ids);
}

// Sends equally many tokens to every expert, as the prediction assumes.
class BalancedRouting final : public OperatorHandler {
 public:
  explicit BalancedRouting(int64_t experts) : experts_(experts), scope_(*this) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) override {
    next.Run();
    if (op.schema().name() != "aten::topk") return;
    const at::Tensor& chosen = stack.back().toTensor();
    int64_t* const ids = chosen.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < chosen.numel(); ++i) ids[i] = i % experts_;
  }

 private:
  int64_t experts_;
  OperatorScope scope_;
};

int64_t ExpertsOf(const JsonValue& config) {
  for (const char* key : {"num_local_experts", "num_experts"}) {
    if (const JsonValue* found = config.Find(key)) return found->AsInt();
  }
  return 1;
}

int64_t Measured(const Setup& setup) {
  const auto state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  CountingAllocator allocator(static_cast<int64_t>(state.nbytes()));  // random states are the host's on every device
  int64_t grown = 0;
  {
    const Model model = Make(setup, at::kCPU, {});
    Initialize(*model.applied, 3);
    const at::Tensor ids = at::arange(kBatch * kSequence).remainder(50).view({kBatch, kSequence});
    const BalancedRouting routing(ExpertsOf(ConfigOf(setup)));
    const int64_t before = allocator.live();
    allocator.ResetPeak();
    Loss(model, ids).backward();
    grown = allocator.peak() - before;
  }
  return grown;
}

Footprint PredictedPeak(const Setup& setup) {
  const MetaScope meta({.routed_share = 1.0 / static_cast<double>(ExpertsOf(ConfigOf(setup)))});
  const auto recorder = std::make_shared<StepRecorder>();
  const StepRecorder::Scope scope(recorder);
  const Model model = Make(setup, at::kMeta, {});
  const at::Tensor ids = at::empty({kBatch, kSequence}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  recorder->Begin(*model.applied);
  at::Tensor loss;
  {
    const auto inside = recorder->Inside("loss");
    loss = Loss(model, ids);
  }
  loss.backward();
  return recorder->End(*model.applied);
}

std::vector<Setup> Setups() {
  std::vector<Setup> out;
  for (const std::filesystem::path& folder : ParityFolders()) {
    for (const bool sequence_parallel : {false, true}) {
      for (const char* recompute : {"", "layers", "attention"}) {
        out.push_back({folder, "tp=2", sequence_parallel, false, recompute});
      }
    }
    out.push_back({folder, "tp=1", false, false, ""});
    out.push_back({folder, "tp=2", true, true, ""});
    for (const char* recompute : {"", "layers"}) {
      out.push_back({folder, "dp=2", false, false, recompute, true});
      out.push_back({folder, "dp=2,tp=2", true, false, recompute, true});
    }
  }
  // The first rank of a ring computes with its own block, the last one with all.
  for (const char* model : {"llama_gqa", "qwen3_head_dim12", "gemma3_softcap", "mistral_window8", "mixtral"}) {
    for (const char* context : {"ulysses", "ring"}) {
      for (const auto& [mesh, sequence_parallel, last] :
           {std::tuple("cp=2", false, 1), std::tuple("cp=4", false, 3), std::tuple("cp=2,tp=2", true, 3)}) {
        for (const int64_t rank : {0, last}) {
          Setup setup{SourcePath("tests/parity/" + std::string(model)), mesh, sequence_parallel};
          setup.context = context;
          setup.rank = rank;
          out.push_back(setup);
        }
        Setup recomputed{SourcePath("tests/parity/" + std::string(model)), mesh, sequence_parallel, false, "layers"};
        recomputed.context = context;
        recomputed.rank = last;
        out.push_back(recomputed);
      }
    }
  }
  for (const char* model : {"mixtral", "qwen3_moe"}) {
    for (const int64_t rank : {0, 1}) {
      Setup setup{SourcePath("tests/parity/" + std::string(model)), "tp=2"};
      setup.owned_experts = true;
      setup.rank = rank;
      out.push_back(setup);
    }
  }
  // A recorded all-to-all keeps every block where it is: with balanced routing each rank receives what it would in a
  // run.
  for (const char* model : {"mixtral", "qwen3_moe", "qwen2_moe"}) {
    for (const auto& [mesh, sequence_parallel, last] :
         {std::tuple("ep=2", false, 1), std::tuple("ep=4", false, 3), std::tuple("ep=2,tp=2", false, 3),
          std::tuple("ep=2,tp=2", true, 3), std::tuple("dp_shard=2,ep=2", false, 3)}) {
      for (const char* recompute : {"", "layers"}) {
        for (const int64_t rank : {0, last}) {
          Setup setup{SourcePath("tests/parity/" + std::string(model)), mesh, sequence_parallel, false, recompute};
          setup.exchange = true;
          setup.fsdp = std::string(mesh).starts_with("dp_shard");
          setup.ddp = !setup.fsdp;
          setup.rank = rank;
          out.push_back(setup);
        }
      }
    }
  }
  return out;
}

TEST_CASE("the predicted peak of a step is what an allocator counts, within 1 %") {
  at::set_num_threads(1);
  double worst = 0;
  for (const Setup& setup : Setups()) {
    const int64_t measured = Measured(setup);
    const Footprint predicted = PredictedPeak(setup);
    const double error = std::abs(static_cast<double>(predicted.step_peak - measured)) / static_cast<double>(measured);
    worst = std::max(worst, error);
    INFO(setup.Name() << ": predicted " << predicted.step_peak << ", counted " << measured << ", at "
                      << predicted.peak_phase << " of " << predicted.peak_module << " " << predicted.peak_op);
    CHECK(error < 0.01);
  }
  std::cout << "largest difference of " << Setups().size() << " peaks: " << worst * 100 << " %\n";
}

}  // namespace
}  // namespace moonshard::test
