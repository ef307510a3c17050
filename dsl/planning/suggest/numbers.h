// Numbers: the sizes of a decoder in config.json, under any of the usual names, each with the Lua expression that a
// plan reads it with.
// Stage before: config.json. Stage after: layer.h, which compares them with shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/io/config/config.h"

namespace moonshard {

struct Number {
  int64_t value = 0;  // 0: unknown
  std::string lua;    // "text.num_attention_heads"; the number itself if it is from a shape
  bool known() const { return value > 0; }
  bool operator==(const Number&) const = default;
};

// A number that no field of the config has: it is written as itself.
Number Literal(int64_t value);

struct ModelNumbers {
  std::string section;  // the object with the decoder's numbers: "text_config"; "": the config itself
  Number hidden;
  Number vocabulary;
  Number heads;
  Number kv_heads;     // as the config has it; missing: as many as heads
  Number head_dim;     // as the config has it
  Number wide;         // features between the two halves of a feed-forward block
  Number expert_wide;  // of an expert
  Number experts;
  Number kv_latent;  // rank of the latent of keys and values
  int64_t rotary_dim = 0;
  std::string model_type;
};

ModelNumbers ReadNumbers(const ModelConfig& config);

// Those of the tower beside the decoder that sees (vision_config) or hears (audio_config); nothing where its number of
// heads or its hidden size is not told.
std::optional<ModelNumbers> ReadTowerNumbers(const ModelConfig& config, bool hears);

}  // namespace moonshard
