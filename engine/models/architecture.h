// Architecture: one reference architecture, defined by architectures/NAME.cc. To add one, add its file: CMake finds it
// and writes the table that AllArchitectures returns.
//
//   namespace moonshard::architectures {
//   Architecture Qwen3Moe() {  // of qwen3_moe.cc: the name of the file in capitals
//     return {{"Qwen3MoeForCausalLM"}, "qwen3_moe", ReadQwen3Moe};
//   }
//   }
#pragma once

#include <string>
#include <vector>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace moonshard {

struct Architecture {
  std::vector<std::string> names;  // classes of Hugging Face, "architectures" in config.json
  std::string model_type;          // selects the first of them for a config that names no class
  // Reads the config; every field that changes the computation is read or is an error. Builds nothing; errors go to the
  // reader's diagnostics, and then the spec is not used. `name` is one of `names`.
  DecoderSpec (*read)(ConfigReader& fields, const std::string& name);
};

// All of them, in the order of their files' names.
std::vector<Architecture> AllArchitectures();

}  // namespace moonshard
