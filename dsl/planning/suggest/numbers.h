// Numbers: reads the sizes of a decoder from config.json, under any of the usual field names. Each number has the Lua
// expression with which a plan reads the number from the config.
// Stage before: config.json. Stage after: layer.h, which compares them with shapes.
#pragma once

#include <cstdint>
#include <optional>
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
};

ModelNumbers ReadNumbers(const ModelConfig& config);

// Reads the numbers of a tower beside the decoder: the image tower (vision_config) or, if `hears`, the audio tower
// (audio_config or encoder_config). Returns nothing if the config lacks the number of heads or the hidden size of the
// tower.
std::optional<ModelNumbers> ReadTowerNumbers(const ModelConfig& config, bool hears);

}  // namespace moonshard
