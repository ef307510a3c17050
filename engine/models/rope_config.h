// The rotary part of a decoder's config.json: rope_theta with rope_scaling (transformers 4), or rope_parameters
// (transformers 5), with the precedence and the defaults of transformers 5. Used by decoder_config.cc, and by
// architectures whose layers differ in it.
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
  int64_t dims = 0;  // number of dims of each head that are rotated, the first ones; even
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3, yarn, longrope
  int64_t original_max_position_embeddings = 0;  // llama3, yarn, longrope
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  double beta_fast = 32.0;                       // yarn
  double beta_slow = 1.0;                        // yarn
  double attention_factor = 1.0;                 // multiplies cos and sin; by the type's formula if not given
  bool truncate = true;                          // yarn: integral dims as the ends of the ramp
  std::vector<double> short_factor;              // longrope: a stretch per pair of dims, up to the original length
  std::vector<double> long_factor;               // longrope: and beyond it
};

// An architecture's defaults for what the config does not contain.
struct RopeDefaults {
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  // If the config has no such field outside of the rope's object; it then precedes the one inside, too.
  std::optional<int64_t> original_max_position_embeddings;
  bool turns_part = false;              // heads may be rotated in part; else any factor but 1 is an error
  bool yarn_means_longrope = false;     // "yarn" and "su" are Phi-3's first names for longrope
  std::vector<std::string> also_reads;  // other fields of the rope's object that the architecture reads itself
};

// The rope of all layers. `top` is the full config. Adds an error for a type that is not supported, by name, and for
// each field that is missing or of the wrong kind.
RopeConfig ReadRope(ConfigReader& top, int64_t head_dim, int64_t max_position_embeddings, const RopeDefaults& defaults);

// The same from one object, with `defaults` for what is outside of it.
RopeConfig ReadRopeObject(ConfigReader& top, ConfigReader& rope, int64_t head_dim, int64_t max_position_embeddings,
                          const RopeDefaults& defaults);

// The object that applies: rope_scaling, or if that is absent or empty rope_parameters.
ConfigReader RopeObject(ConfigReader& top);

}  // namespace moonshard
