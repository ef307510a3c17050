// Numbers: reads the sizes of a decoder from config.json, under any of the usual field names. Each number has the Lua
// expression with which a plan reads the number from the config.
// Stage before: config.json. Stage after: layer.h, which compares them with shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "engine/io/config/config.h"

namespace moonshard {

struct Number {
  int64_t value = 0;  // 0: unknown
  std::string lua;    // "text.num_attention_heads"; the number itself if it comes from a shape
  bool known() const { return value > 0; }
  bool operator==(const Number&) const = default;
};

// A number without a field in the config; its Lua expression is the number itself.
Number Literal(int64_t value);

struct ModelNumbers {
  std::string section;  // the object of config.json with the decoder's numbers: "text_config"; "": the config itself
  Number hidden;
  Number vocabulary;
  Number heads;
  Number kv_heads;     // from the config; unknown: as many as heads
  Number head_dim;     // from the config
  Number wide;         // intermediate features of a feed-forward block
  Number expert_wide;  // intermediate features of an expert
  Number experts;
  Number kv_latent;  // features of the latent of keys and values (kv_lora_rank)
  int64_t rotary_dim = 0;
  std::string model_type;
  bool borrowed = false;     // perhaps those of another stack: several have no section of their own in the config
  bool sparse_gate = false;  // the activation of a gate depends on all its features (activation_sparsity_pattern)
};

ModelNumbers ReadNumbers(const ModelConfig& config);

// The values of model_type in the config and in its sections, at any depth.
std::set<std::string> ReadTypes(const ModelConfig& config);

// Reads the numbers of the stack of layers at `path` from the part of the config that names it: `encoder` for
// "model.encoder.layers", `perceiver_config` for "connector.perceiver_resampler.layers"; or, of one config for two
// stacks, from the fields that do (encoder_attention_heads). Returns nothing if no part names it, or only the one of
// ReadNumbers, or if it lacks the number of heads.
std::optional<ModelNumbers> ReadNumbersOfStack(const ModelConfig& config, const std::string& path);

// Reads the numbers of a tower beside the decoder: the image tower (vision_config) or, if `hears`, the audio tower
// (audio_config or encoder_config), of the config or of its section about the encoder. Returns nothing if the number of
// heads or the hidden size of the tower is missing.
std::optional<ModelNumbers> ReadTowerNumbers(const ModelConfig& config, bool hears);

}  // namespace moonshard
