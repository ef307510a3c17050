// The rotary part of a decoder's config.json: rope_theta with rope_scaling (transformers 4), or rope_parameters
// (transformers 5), with the precedence and the defaults of transformers 5. Used by decoder_config.cc, and by
// architectures that turn some layers otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/config_reader.h"

namespace moonshard {

// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and how its frequencies are stretched.
struct RopeConfig {
  enum class Type { kDefault, kLinear, kLlama3, kYarn, kLongrope };
  Type type = Type::kDefault;
  int64_t dims = 0;  // how many dims of each head are turned, the first; even
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3, yarn, longrope
  int64_t original_max_position_embeddings = 0;  // llama3, yarn, longrope
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  double beta_fast = 32.0;                       // yarn
  double beta_slow = 1.0;                        // yarn
  double attention_factor = 1.0;                 // multiplies cos and sin; the type's own formula where not given
  bool truncate = true;                          // yarn: whole dims as the ends of the ramp
  std::vector<double> short_factor;              // longrope: a stretch per pair of dims, up to the original length
  std::vector<double> long_factor;               // longrope: and beyond it
};

// What an architecture knows about its rope where the config says nothing.
struct RopeDefaults {
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  // Where the config has no such field beside the rope's; then it goes before the one inside, too.
  std::optional<int64_t> original_max_position_embeddings;
  bool turns_part = false;              // heads may be turned in part; else any other factor than 1 is an error
  bool yarn_means_longrope = false;     // and "su" too: Phi-3's first names for it
  std::vector<std::string> also_reads;  // fields beside the rope's own that the architecture reads itself
};

// The rope of all layers. `top` is the whole config. Adds an error for a type that is not computed here, by name, and
// for each field that is missing or of the wrong kind.
RopeConfig ReadRope(ConfigReader& top, int64_t head_dim, int64_t max_position_embeddings, const RopeDefaults& defaults);

// The same of one object, where `defaults` say what stands outside it.
RopeConfig ReadRopeObject(ConfigReader& top, ConfigReader& rope, int64_t head_dim, int64_t max_position_embeddings,
                          const RopeDefaults& defaults);

// The object that rules: rope_scaling, or where that is absent or empty rope_parameters.
ConfigReader RopeObject(ConfigReader& top);

}  // namespace moonshard
