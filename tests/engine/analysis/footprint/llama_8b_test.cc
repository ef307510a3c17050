// A model that no machine here could hold: Llama 3 8B on 8 ranks, 8192 tokens, in well under a second.
#include <catch2/catch.hpp>

#include <ctime>
#include <iostream>

#include <ATen/ATen.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/analysis/footprint/step_recorder.h"
#include "engine/analysis/meta/meta_scope.h"
#include "engine/core/base/json.h"
#include "engine/models/causal_lm.h"
#include "engine/plan/compile/cost.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/train/loss/losses.h"
#include "engine/train/loss/vocabulary_of.h"

namespace moonshard::test {
namespace {

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": false,
  "model_type": "llama", "torch_dtype": "bfloat16"
})";
constexpr int64_t kTokens = 8192;

struct Predicted {
  Footprint footprint;
  std::string text;
  std::string json;
  PlanTotals totals;
  double seconds = 0;
};

Predicted Predict(bool sequence_parallel, bool recompute) {
  const std::clock_t begin = std::clock();
  const JsonValue config = ParseJson(kConfig, "config.json").ValueOrThrow();
  const MetaScope meta;
  const auto recorder = std::make_shared<StepRecorder>();
  const StepRecorder::Scope scope(recorder);
  CausalLm net;
  {
    const nn::DeferInit defer;
    net = MakeCausalLm(config).ValueOrThrow();
  }
  const DeviceMesh mesh =
      DeviceMesh::Recording(MeshShape::Parse("tp=8").ValueOrThrow(), /*rank=*/0, c10::Device(c10::kMeta));
  const LiveTree live = ReadLiveTree(*net.module).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  inputs.options["sequence_parallel"] = sequence_parallel;
  inputs.options["loss_parallel"] = true;
  Plan plan = LoadPlanFile("llama", inputs).ValueOrThrow();
  if (recompute) plan.recompute.emplace_back().modules = {{"model.layers.*"}};
  const std::shared_ptr<AppliedPlan> applied =
      ParallelizeModule(*net.module, plan, mesh, {.deferred_type = at::kBFloat16});
  const Vocabulary vocabulary = VocabularyOf(*applied, "lm_head").ValueOrThrow();
  const at::Tensor ids = at::empty({1, kTokens}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  recorder->Begin(*applied);
  at::Tensor loss;
  {
    const auto inside = recorder->Inside("loss");
    loss = CrossEntropy(vocabulary, net.forward(ids, {}, {}), ids);
  }
  loss.backward();
  Predicted out;
  out.footprint = recorder->End(*applied);
  out.totals = TotalsOf(applied->plan(), 0, Tokens{1, kTokens});
  out.text = FootprintText(applied->plan(), out.footprint);
  out.json = WriteJson(FootprintJson(applied->plan(), out.footprint), 2);
  out.seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::cout << "Llama 3 8B, tp=8, " << kTokens << " tokens" << (sequence_parallel ? ", sequence parallel" : "")
            << (recompute ? ", layers recomputed" : "") << ": " << out.seconds << " s\n";
  return out;
}

int64_t Of(const Footprint& footprint, FootprintKind kind) { return footprint.bytes[static_cast<size_t>(kind)]; }

TEST_CASE("Llama 3 8B on 8 ranks in under a second") {
  const Predicted plain = Predict(false, false);
  const Predicted shards = Predict(true, false);
  const Predicted again = Predict(true, true);
  std::cout << plain.text;
  for (const Predicted* one : {&plain, &shards, &again}) CHECK(one->seconds < 1);
  // 8.03e9 parameters; norms are on every rank.
  CHECK(static_cast<double>(Of(plain.footprint, FootprintKind::kParameter)) == Approx(8.03e9 / 8 * 2).epsilon(0.01));
  CHECK(Of(plain.footprint, FootprintKind::kOptimizer) == 2 * Of(plain.footprint, FootprintKind::kParameter));
  CHECK(Of(shards.footprint, FootprintKind::kActivation) < 0.7 * Of(plain.footprint, FootprintKind::kActivation));
  CHECK(Of(again.footprint, FootprintKind::kActivation) < 0.2 * Of(shards.footprint, FootprintKind::kActivation));
  // Products of matrices alone: 2 operations for each parameter of a product and token.
  double forward = 0;
  double attention = 0;
  double again_forward = 0;
  for (const FootprintModule& module : plain.footprint.modules) {
    (module.path.ends_with("self_attn") ? attention : forward) += module.work.forward;
  }
  for (const FootprintModule& module : again.footprint.modules) again_forward += module.work.recompute;
  CHECK(forward == Approx(2.0 * kTokens * (8.03e9 - 128256.0 * 4096) / 8).epsilon(0.01));
  CHECK(attention == Approx(32 * 4.0 * kTokens * kTokens * 4096 / 8).epsilon(0.001));
  CHECK(again_forward == Approx(forward + attention - 2.0 * kTokens * 128256 * 4096 / 8).epsilon(0.001));
  CHECK(Predict(false, false).json == plain.json);
}

TEST_CASE("work and memory belong to the module that makes them, in the backward too") {
  const Predicted again = Predict(true, true);
  CHECK(again.footprint.bytes[0] == again.totals.bytes_per_rank / 2);  // the tree says float32
  int products = 0;
  for (const FootprintModule& module : again.footprint.modules) {
    INFO(module.path);
    if (!module.path.ends_with("_proj")) continue;
    ++products;
    CHECK(module.work.forward > 0);
    CHECK(module.work.recompute == module.work.forward);
    CHECK(module.work.backward == 2 * module.work.forward);
  }
  CHECK(products == 32 * 7);
  const Predicted kept = Predict(true, false);
  CHECK(kept.footprint.collectives.of(Direction::kForward, CollectiveKind::kReduceScatter).count ==
        kept.totals.collectives.of(Direction::kForward, CollectiveKind::kReduceScatter).count);
  CHECK(kept.footprint.collectives.of(Direction::kBackward, CollectiveKind::kAllGather).count ==
        kept.totals.collectives.of(Direction::kBackward, CollectiveKind::kAllGather).count);
  // All gradients are there when the optimizer steps.
  CHECK(kept.footprint.optimizer_peak > 4 * Of(kept.footprint, FootprintKind::kParameter));
  for (const FootprintModule& module : kept.footprint.modules) {
    const bool is_product = module.path.ends_with("_proj") || module.path == "lm_head";
    if (is_product) CHECK(module.work.backward == 2 * module.work.forward);
    if (module.path.ends_with("self_attn")) CHECK(module.work.backward == 2.5 * module.work.forward);
    CHECK(module.work.recompute == 0);
  }
  // What the gate has made is the gate's: its product, kept for the backward of silu.
  for (const FootprintPart& part : kept.footprint.parts) {
    if (part.module != "model.layers.3.mlp.gate_proj" || part.kind != FootprintKind::kActivation) continue;
    CHECK(part.op == "aten::mm");
    CHECK(part.bytes == kTokens * 14336 / 8 * 2);
  }
}

}  // namespace
}  // namespace moonshard::test
