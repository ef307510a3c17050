// Numbers: what a config.json says about a decoder's sizes, under whichever of the usual names, each with the Lua
// expression that a plan file finds it by.
// Stage before: config.json. Stage after: layer.h, which holds them against shapes.
#pragma once

#include <cstdint>
#include <string>

#include "engine/io/config/config.h"

namespace moonshard {

struct Number {
  int64_t value = 0;  // 0: not known
  std::string lua;    // "text.num_attention_heads"; the number itself where it comes from a shape
  bool known() const { return value > 0; }
  bool operator==(const Number&) const = default;
};

// A number that no field of the config has: it is written as itself.
Number Literal(int64_t value);

struct ModelNumbers {
  std::string section;  // the object in which the decoder's numbers stand: "text_config"; "": the whole config
  Number hidden;
  Number vocabulary;
  Number heads;
  Number kv_heads;     // as the config has it; missing: as many as heads
  Number head_dim;     // as the config has it
  Number wide;         // features between the two halves of a feed-forward block
  Number expert_wide;  // of an expert
  Number experts;
  Number kv_latent;  // rank of the latent that keys and values come from
  int64_t rotary_dim = 0;
  std::string model_type;
};

ModelNumbers ReadNumbers(const ModelConfig& config);

}  // namespace moonshard
