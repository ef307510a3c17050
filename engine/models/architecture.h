// Architecture: one reference architecture, as architectures/NAME.cc defines it. That file is all it takes to add one:
// CMake finds it, and writes the table that AllArchitectures returns.
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
  std::string model_type;          // what a config that names no class calls the first of them
  // What the config says, every field that changes the computation read or refused. Builds nothing; errors go to the
  // reader's diagnostics, and then the spec is not used. `name` is one of `names`.
  DecoderSpec (*read)(ConfigReader& fields, const std::string& name);
};

// All of them, in the order of their files' names.
std::vector<Architecture> AllArchitectures();

}  // namespace moonshard
