// What the tests of the plan language give to plans.
#pragma once

#include <string>

#include "dsl/language/eval/load_plan.h"

namespace moonshard {

inline PlanInputs LlamaInputs(int64_t tp) {
  PlanInputs inputs;
  inputs.config = ParseJson(R"({
      "architectures": ["LlamaForCausalLM"], "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64,
      "num_hidden_layers": 2, "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
      "layer_types": ["full", "sliding"], "sliding_window": null, "tie_word_embeddings": false})",
                            "config.json")
                      .ValueOrThrow();
  inputs.mesh = MeshShape::Parse("tp=" + std::to_string(tp)).ValueOrThrow();
  return inputs;
}

// Two layers with an MLP each, and a head of 331 rows.
inline ModuleTree SmallLlama() {
  ModuleTree tree;
  for (const std::string layer : {"0", "1"}) {
    for (const std::string name : {"gate_proj", "up_proj", "down_proj"}) {
      tree.Add("model.layers." + layer + ".mlp." + name, "Linear", {{"weight", {128, 64}, DType::kF32, false}});
    }
  }
  tree.Add("lm_head", "Linear", {{"weight", {331, 64}, DType::kF32, false}});
  return tree;
}

inline std::string TextOf(const Result<Plan>& plan) {
  return plan.ok() ? plan.value().ToText() : ToText(plan.diagnostics());
}

}  // namespace moonshard
