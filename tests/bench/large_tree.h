// A tree of 63,201 modules: 61 layers of 256 experts, as of a large mixture of experts.
#pragma once

#include <memory>
#include <string>

#include "engine/layout/module_tree.h"

namespace moonshard::bench {

inline std::shared_ptr<const ModuleTree> MakeLargeTree() {
  constexpr int kLayers = 61;
  constexpr int kExperts = 256;
  const auto weight = [](int64_t rows, int64_t columns) {
    return Parameter{"weight", {rows, columns}, DType::kBF16, false};
  };
  auto tree = std::make_shared<ModuleTree>();
  tree->Add("", "Model", {});
  tree->Add("model", "Decoder", {});
  tree->Add("model.embed_tokens", "Embedding", {weight(129280, 7168)});
  tree->Add("model.layers", "ModuleList", {});
  for (int l = 0; l < kLayers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l);
    tree->Add(layer, "Layer", {});
    tree->Add(layer + ".self_attn", "Attention", {});
    tree->Add(layer + ".self_attn.q_a_proj", "Linear", {weight(1536, 7168)});
    tree->Add(layer + ".self_attn.q_b_proj", "Linear", {weight(24576, 1536)});
    tree->Add(layer + ".self_attn.kv_a_proj_with_mqa", "Linear", {weight(576, 7168)});
    tree->Add(layer + ".self_attn.kv_b_proj", "Linear", {weight(32768, 512)});
    tree->Add(layer + ".self_attn.o_proj", "Linear", {weight(7168, 16384)});
    tree->Add(layer + ".mlp", "Moe", {});
    tree->Add(layer + ".mlp.gate", "Router", {weight(256, 7168)});
    tree->Add(layer + ".mlp.experts", "ModuleList", {});
    for (int e = 0; e < kExperts; ++e) {
      const std::string expert = layer + ".mlp.experts." + std::to_string(e);
      tree->Add(expert, "Mlp", {});
      tree->Add(expert + ".gate_proj", "Linear", {weight(2048, 7168)});
      tree->Add(expert + ".up_proj", "Linear", {weight(2048, 7168)});
      tree->Add(expert + ".down_proj", "Linear", {weight(7168, 2048)});
    }
    tree->Add(layer + ".input_layernorm", "RMSNorm", {{"weight", {7168}, DType::kBF16, false}});
    tree->Add(layer + ".post_attention_layernorm", "RMSNorm", {{"weight", {7168}, DType::kBF16, false}});
  }
  tree->Add("lm_head", "Linear", {weight(129280, 7168)});
  return tree;
}

}  // namespace moonshard::bench
