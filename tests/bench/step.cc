// One training step (forward, loss, backward) of a small Llama, unsharded and at tp=2 on thread ranks, in turn within
// one run: the C++ side of a comparison with torch's parallelize_module, whose own ratio comes from a Python script
// that times the same model. Prints JSON.
//   bench_step [HIDDEN] [sequence_parallel [PAIRS]]      H 128 without arguments; 4 layers, batch 2, sequence 128
#include <cstdio>
#include <cstdlib>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/apply/parallelize.h"
#include "tests/bench/timing.h"
#include "tests/support/ranks.h"

namespace moonshard::bench {
namespace {

constexpr int64_t kLayers = 4;
constexpr int64_t kVocabulary = 4096;

JsonValue MakeConfig(int64_t hidden) {
  return JsonValue::Object{{"architectures", JsonValue::Array{"LlamaForCausalLM"}},
                           {"model_type", "llama"},
                           {"hidden_size", hidden},
                           {"intermediate_size", hidden * 11 / 4},
                           {"num_hidden_layers", kLayers},
                           {"num_attention_heads", 8},
                           {"num_key_value_heads", 4},
                           {"vocab_size", kVocabulary},
                           {"rms_norm_eps", 1e-6},
                           {"max_position_embeddings", 2048},
                           {"hidden_act", "silu"}};
}

// With a generator of its own: ranks that are threads share the process's, and every rank must begin with the same
// values.
void Fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  const at::Generator generator = at::detail::createCPUGenerator(/*seed=*/0);
  for (at::Tensor& p : module.parameters()) p.uniform_(-0.05, 0.05, generator);
}

void Bench(int64_t hidden, bool sequence_parallel, int pairs) {
  const JsonValue config = MakeConfig(hidden);
  test::RunRanks("tp=2", [&](DeviceMesh& mesh) {
    const CausalLm full = MakeCausalLm(config).ValueOrThrow();
    Fill(*full.module);
    const CausalLm shards = MakeCausalLm(config).ValueOrThrow();
    Fill(*shards.module);
    PlanInputs inputs;
    inputs.config = config;
    inputs.mesh = mesh.shape();
    inputs.options["sequence_parallel"] = sequence_parallel;
    const auto applied = ParallelizeModule(*shards.module, LoadPlanFile("llama", inputs).ValueOrThrow(), mesh);
    const at::Tensor ids = torch::arange(2 * 128).remainder(kVocabulary).view({2, 128});
    const auto step = [&](const CausalLm& model) {
      for (at::Tensor& p : model.module->parameters()) p.mutable_grad().reset();
      CausalLmLoss(model.forward(ids, std::nullopt, std::nullopt), ids).backward();
    };
    const PairTimes times = TimePairs([&] { step(shards); }, [&] { step(full); }, pairs);
    if (mesh.rank() == 0) {
      std::printf(
          "{\"H\": %lld, \"L\": %lld, \"sequence_parallel\": %s, \"base_ms\": %.2f, \"tp_ms\": %.2f, \"ratio\": "
          "%.3f}\n",
          static_cast<long long>(hidden), static_cast<long long>(kLayers), sequence_parallel ? "true" : "false",
          times.b_ms, times.a_ms, times.ratio);
    }
  });
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const moonshard::bench::Arguments arguments(argc, argv);
  const std::vector<std::string>& words = arguments.words();
  const int pairs = arguments.Times(2, 15);
  if (!words.empty()) {
    moonshard::bench::Bench(std::stoll(words[0]), words.size() > 1 && words[1] == "sequence_parallel", pairs);
    return 0;
  }
  for (const int64_t hidden : arguments.short_round() ? std::vector<int64_t>{64} : std::vector<int64_t>{128, 512}) {
    for (const bool sequence_parallel : {false, true}) moonshard::bench::Bench(hidden, sequence_parallel, pairs);
  }
  return 0;
}
