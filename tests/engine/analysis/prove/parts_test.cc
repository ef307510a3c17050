// Proofs of layouts with everything else that a plan can say: fsdp, recomputation, losses on shards of the vocabulary,
// the gradient norm, an optimizer; and what types cannot see, which the comparison of operators finds.
#include <catch2/catch.hpp>

#include <mutex>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/optim/adamw.h>

#include "engine/analysis/prove/operator_trace.h"
#include "engine/runtime/sharded_model/clip_grad_norm.h"
#include "engine/train/loss/losses.h"
#include "engine/train/loss/vocabulary_of.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

Setup SetupOf(const std::string& name, bool sequence_parallel) {
  return {std::filesystem::path(SourcePath("tests/parity")) / name, 2, sequence_parallel, false};
}

void Fsdp(Plan& plan) {
  plan.data_parallel.emplace();
  plan.data_parallel->wrap = {{"model.layers.*", PatternSyntax::kGlob, {}}};
}

void RecomputeLayers(Plan& plan) { plan.recompute = {Recomputed{{{"model.layers.*", PatternSyntax::kGlob, {}}}}}; }

TEST_CASE("steps under fsdp are proven") {
  for (const char* name : {"llama_gqa", "qwen3_head_dim12"}) {
    for (const bool sequence_parallel : {false, true}) {
      Setup setup = SetupOf(name, sequence_parallel);
      setup.more = Fsdp;
      const Proof proof = ProveAlone(setup, "dp=2,tp=2", 0);
      INFO(setup.Name() << "\n" << ToText(proof));
      CHECK(proof.layouts_hold());
    }
  }
}

TEST_CASE("recomputed steps are proven, and their faults found") {
  for (const bool sequence_parallel : {false, true}) {
    Setup setup = SetupOf("llama_gqa", sequence_parallel);
    setup.more = RecomputeLayers;
    // Even: a rank without peers cannot ask them how long their shards are.
    const Proof proof = ProveAlone(setup, "tp=2", 0, {}, 12);
    INFO(setup.Name() << "\n" << ToText(proof));
    CHECK(proof.layouts_hold());
    const Proof faulty = ProveAlone(
        setup, "tp=2", 0,
        [](CompiledPlan& plan) {
          const int64_t m = plan.tree->Find("model.layers.0.self_attn.o_proj");
          plan.layouts.push_back(plan.LayoutsOf(static_cast<size_t>(m)));
          plan.layouts_of[static_cast<size_t>(m)] = static_cast<uint32_t>(plan.layouts.size() - 1);
          plan.layouts.back().outputs[0]->to = Placement(Layout::Partial());
        },
        12);
    CHECK(!faulty.faults.empty());
  }
}

TEST_CASE("losses on shards of the vocabulary are trusted regions, a plain loss on a shard is a fault") {
  for (const bool sequence_parallel : {false, true}) {
    Setup setup = SetupOf("llama_gqa", sequence_parallel);
    setup.loss_parallel = true;
    const ShardedModel sharded = Load(setup, DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow()));
    const NamedTensors inputs = ReadTensors(setup.folder / "inputs_1.safetensors");
    const at::Tensor labels = inputs.at("labels").clone();
    VocabularyOptions unchecked;
    unchecked.check_targets = false;
    const Vocabulary vocabulary = VocabularyOf(*sharded.applied, "lm_head", unchecked).ValueOrThrow();
    {
      TypeScope scope(*sharded.applied);
      scope.Input(labels);
      const at::Tensor logits = sharded.model.forward(inputs.at("input_ids").clone(), std::nullopt, std::nullopt);
      const at::Tensor loss = CrossEntropy(vocabulary, logits, labels);
      scope.Loss(loss);
      loss.backward();
      const Proof proof = scope.Finish();
      INFO(ToText(proof));
      CHECK(proof.layouts_hold());
    }
    for (const LiveParameter& parameter : sharded.applied->parameters()) parameter.tensor.mutable_grad().reset();
    const Proof naive = ProveStep(sharded, {{"input_ids", inputs.at("input_ids")}, {"labels", labels.remainder(8)}});
    REQUIRE(!naive.faults.empty());
    CHECK(naive.faults.front().what.find("log_softmax") != std::string::npos);
  }
}

TEST_CASE("the gradient norm and an optimizer are part of the proof") {
  const Setup setup = SetupOf("llama_gqa", true);
  const NamedTensors inputs = ReadTensors(setup.folder / "inputs_1.safetensors");
  const auto step = [&](const std::function<void(CompiledPlan&)>& change) {
    const ShardedModel sharded = Load(setup, DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow()), change);
    std::vector<at::Tensor> parameters;
    for (const LiveParameter& parameter : sharded.applied->parameters()) {
      if (!parameter.is_buffer) parameters.push_back(parameter.tensor);
    }
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-3));
    const at::Tensor labels = inputs.at("labels").clone();
    TypeScope scope(*sharded.applied);
    scope.Input(labels);
    CausalLmLoss(sharded.model.forward(inputs.at("input_ids").clone(), std::nullopt, std::nullopt), labels).backward();
    ClipGradNorm(*sharded.applied, 1.0);
    optimizer.step();
    return scope.Finish();
  };
  const Proof good = step({});
  INFO(ToText(good));
  CHECK(good.layouts_hold());
  // The norms' gradients are not summed: the norm of them and AdamW's squares are of terms.
  const Proof bad = step([](CompiledPlan& plan) {
    for (size_t m = 0; m < plan.layouts_of.size(); ++m) {
      if (plan.tree->modules()[m].path != "model.norm") continue;
      plan.layouts.push_back(plan.LayoutsOf(m));
      plan.layouts_of[m] = static_cast<uint32_t>(plan.layouts.size() - 1);
      plan.layouts.back().params[0] = Placement(Layout::Replicate());
    }
  });
  CHECK(!bad.faults.empty());
}

at::Tensor Rotate(const at::Tensor& x) { return x.flip({-1}); }

TEST_CASE("an operator of the user's own has the rule that the plan names") {
  torch::Library library(torch::Library::FRAGMENT, "prove_test", std::nullopt, __FILE__, __LINE__);
  library.def("rotate(Tensor x) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.impl("rotate", torch::dispatch(c10::DispatchKey::CPU, &Rotate));
  const auto rotate =
      c10::Dispatcher::singleton().findSchemaOrThrow("prove_test::rotate", "").typed<at::Tensor(const at::Tensor&)>();
  const auto prove = [&](std::vector<OperatorLike> operators) {
    Setup setup = SetupOf("llama_gqa", false);
    setup.more = [&](Plan& plan) { plan.operators = operators; };
    const ShardedModel sharded = Load(setup, DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow()));
    TypeScope scope(*sharded.applied);
    const at::Tensor x = at::rand({2, 3});
    SetType(x, TensorType(1, AxisType::Shard(0, 2)));
    rotate.call(x);
    return scope.Finish();
  };
  CHECK(prove({}).unproven.size() == 1);
  CHECK(prove({{"prove_test::rotate", "aten::silu", {}}}).unproven.empty());
  CHECK_THROWS_AS(prove({{"prove_test::rotate", "aten::no_such_operator", {}}}), PlanError);
}

// A step on real ranks with `spoil` done to the sharded model, against the unsharded one.
OperatorDifferences Compare(const Setup& setup, const std::function<void(const ShardedModel&, int64_t rank)>& spoil) {
  const NamedTensors inputs = ReadTensors(setup.folder / "inputs_1.safetensors");
  std::mutex mutex;
  OperatorDifferences out;
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    const ShardedModel sharded = Load(setup, mesh);
    const ShardedModel unsharded = Load(setup, DeviceMesh::Recording(MeshShape(), 0, c10::kCPU, /*as_if_tp=*/true));
    {
      const at::NoGradGuard no_grad;
      spoil(sharded, mesh.rank());
    }
    OperatorTrace trace;
    OperatorTrace full;
    TypeOptions options;
    options.observer = trace.Recorder();
    const Proof proof = ProveStep(sharded, inputs, options);
    options.observer = full.Recorder();
    ProveStep(unsharded, inputs, options);
    Expect(proof.layouts_hold(), "types cannot see it:\n" + ToText(proof));
    const OperatorDifferences differences =
        CompareOperators(trace, full, sharded.applied->group(MeshAxis::kTp), 0, 1e-3);
    mesh.Close();
    const std::lock_guard lock(mutex);
    if (mesh.rank() == 0) out = differences;
  });
  return out;
}

const LiveParameter& ParameterOf(const ShardedModel& sharded, const std::string& path) {
  for (const LiveParameter& parameter : sharded.applied->parameters()) {
    if (parameter.path == path) return parameter;
  }
  throw std::runtime_error("no parameter " + path);
}

TEST_CASE("what types cannot see, the comparison of operators finds at the operator") {
  const std::string layer = "model.layers.0.";
  struct Row {
    const char* what;
    std::string module;
    std::function<void(const ShardedModel&, int64_t)> spoil;
  };
  const std::vector<Row> rows = {
      {"shards swapped between halves", layer + "self_attn.q_proj",
       [&](const ShardedModel& s, int64_t) {
         const at::Tensor w = ParameterOf(s, layer + "self_attn.q_proj.weight").tensor;
         w.copy_(
             at::cat({w.narrow(0, w.size(0) / 2, w.size(0) - w.size(0) / 2), w.narrow(0, 0, w.size(0) / 2)}).clone());
       }},
      {"a wrong scale", layer + "mlp.up_proj",
       [&](const ShardedModel& s, int64_t) { ParameterOf(s, layer + "mlp.up_proj.weight").tensor.mul_(0.5); }},
      {"an offset that depends on the rank", layer + "self_attn.o_proj",
       [&](const ShardedModel& s, int64_t rank) {
         ParameterOf(s, layer + "self_attn.o_proj.weight").tensor.add_(0.1 * static_cast<double>(rank));
       }},
      {"a replica that differs", layer + "input_layernorm",
       [&](const ShardedModel& s, int64_t rank) {
         if (rank == 1) ParameterOf(s, layer + "input_layernorm.weight").tensor.add_(0.3);
       }},
  };
  for (const bool sequence_parallel : {false, true}) {
    const Setup setup = SetupOf("llama_gqa", sequence_parallel);
    for (const Row& row : rows) {
      INFO(setup.Name() << ": " << row.what);
      const OperatorDifferences differences = Compare(setup, row.spoil);
      REQUIRE(differences.first);
      INFO(differences.first->name << " in " << differences.first->path);
      CHECK(differences.first->path == row.module);
      CHECK(!differences.first->backward);
    }
  }
}

}  // namespace
}  // namespace moonshard::test
