// RopeConfig: the rotary fields of a decoder's config.json: rope_theta with rope_scaling (transformers 4), or
// rope_parameters (transformers 5), with the precedence and the defaults of transformers 5. Used by decoder_config.cc,
// and by architectures whose layers have different ropes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/config_reader.h"

namespace moonshard {

// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and how its frequencies are scaled for longer sequences.
struct RopeConfig {
  enum class Type { kDefault, kLinear, kLlama3, kYarn, kLongrope };
  Type type = Type::kDefault;
  int64_t dims = 0;  // number of leading dims of each head that are rotated (rotary_dim); even
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3, yarn, longrope
  int64_t original_max_position_embeddings = 0;  // llama3, yarn, longrope
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  double beta_fast = 32.0;                       // yarn
  double beta_slow = 1.0;                        // yarn
  // Multiplies cos and sin; computed by the formula of the type if the config has no such field.
  double attention_factor = 1.0;
  bool truncate = true;              // yarn: rounds the ends of the ramp to integers
  std::vector<double> short_factor;  // longrope: divisors of the frequencies up to the original length
  std::vector<double> long_factor;   // longrope: divisors of the frequencies for longer sequences
};

// An architecture's defaults for fields that the config does not have.
struct RopeDefaults {
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  // Used if the config has no such field outside of the rope's object; has precedence over the field in the object.
  std::optional<int64_t> original_max_position_embeddings;
  bool turns_part = false;              // false: a partial_rotary_factor other than 1 is an error
  bool yarn_means_longrope = false;     // older Phi-3 configs call longrope "yarn" or "su"
  std::vector<std::string> also_reads;  // other fields of the rope's object that the architecture reads itself
};

// Reads the rope of all layers. `top` is the full config. Adds an error for a type that is not supported, and for each
// field that is missing or has the wrong JSON type.
RopeConfig ReadRope(ConfigReader& top, int64_t head_dim, int64_t max_position_embeddings, const RopeDefaults& defaults);

// Reads the rope from the object `rope` of the config; `defaults` replace the fields outside of the object.
RopeConfig ReadRopeObject(ConfigReader& top, ConfigReader& rope, int64_t head_dim, int64_t max_position_embeddings,
                          const RopeDefaults& defaults);

// Returns the object that has the fields of the rope: rope_scaling, or rope_parameters if rope_scaling is absent or
// empty.
ConfigReader RopeObject(ConfigReader& top);

}  // namespace moonshard
