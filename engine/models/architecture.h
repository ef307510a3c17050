// Architecture: one reference architecture, defined by architectures/NAME.cc. To add an architecture, add its file:
// CMake finds the file and writes the table that AllArchitectures returns.
//
//   namespace moonshard::architectures {
//   Architecture Qwen3Moe() {  // in qwen3_moe.cc: the name of the file in CamelCase
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
  std::string model_type;          // selects the first of `names` for a config that names no class
  // Reads the config: every field that changes the computation is read or is an error. Builds no modules. Errors go to
  // the reader's diagnostics; a spec with errors must not be used. `name` is one of `names`.
  DecoderSpec (*read)(ConfigReader& fields, const std::string& name);
};

// All architectures, in the order of their file names.
std::vector<Architecture> AllArchitectures();

}  // namespace moonshard
