// One rank of a training step of a small Llama (forward, loss, backward, AdamW), driven line by line by train_step.py,
// which has PyTorch make the same step in turn. For each line on stdin: a step, its milliseconds on stdout.
//   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set; bench_train_step MESH HIDDEN [PLAN [TOKENS CONTEXT]]
// MESH: dp=2, tp=2, cp=2; a batch is 2 rows of 128 tokens, or one row of TOKENS; CONTEXT: the option of the plan
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/models/causal_lm.h"
#include "engine/runtime/apply/parallelize.h"
#include "tests/bench/timing.h"

namespace moonshard::bench {
namespace {

constexpr int64_t kVocabulary = 4096;

int Run(const std::string& mesh_text, int64_t hidden, const std::string& plan, int64_t tokens,
        const std::string& context) {
  at::set_num_threads(1);
  const JsonValue config = JsonValue::Object{{"architectures", JsonValue::Array{"LlamaForCausalLM"}},
                                             {"model_type", "llama"},
                                             {"hidden_size", hidden},
                                             {"intermediate_size", hidden * 11 / 4},
                                             {"num_hidden_layers", 4},
                                             {"num_attention_heads", 8},
                                             {"num_key_value_heads", 4},
                                             {"vocab_size", kVocabulary},
                                             {"rms_norm_eps", 1e-6},
                                             {"max_position_embeddings", std::max<int64_t>(2048, tokens)},
                                             {"hidden_act", "silu"}};
  DeviceMesh mesh = DeviceMesh::FromEnvironment(MeshShape::Parse(mesh_text).ValueOrThrow());
  torch::manual_seed(0);
  const CausalLm model = MakeCausalLm(config).ValueOrThrow();
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : model.module->parameters()) p.uniform_(-0.05, 0.05);
  }
  PlanInputs inputs;
  inputs.config = config;
  inputs.mesh = mesh.shape();
  if (!context.empty()) inputs.options["context"] = context;
  const auto applied = ParallelizeModule(*model.module, LoadPlanFile(plan, inputs).ValueOrThrow(), mesh);
  std::vector<at::Tensor> parameters;
  for (const LiveParameter& p : applied->parameters()) {
    if (!p.is_buffer) parameters.push_back(p.tensor);
  }
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-4));
  const int64_t rows = tokens > 0 ? 1 : 2;
  const at::Tensor ids = torch::arange(tokens > 0 ? tokens : rows * 128).remainder(kVocabulary).view({rows, -1});
  std::string line;
  while (std::getline(std::cin, line)) {
    const double ms = MillisecondsOf([&] {
      optimizer.zero_grad();
      CausalLmLoss(model.forward(ids, std::nullopt, std::nullopt), ids).backward();
      optimizer.step();
    });
    std::printf("%.4f\n", ms);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  if (argc < 3 || argc > 6) {
    std::printf(
        "bench_train_step MESH HIDDEN [PLAN [TOKENS CONTEXT]]: a rank of tests/bench/train_step.py; "
        "nothing measured\n");
    return argc == 1 ? 0 : 2;
  }
  return moonshard::bench::Run(argv[1], std::atoll(argv[2]), argc > 3 ? argv[3] : "llama",
                               argc > 4 ? std::atoll(argv[4]) : 0, argc > 5 ? argv[5] : "");
}
