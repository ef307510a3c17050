// TrainingRecord: the state of a training run that is not tensors, in Manifest::extra under the key "training". The
// record is plain data: reading it does not need LibTorch.
// Stage before: manifest.h. Used by training_state, which writes and reads it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/io/checkpoint/manifest.h"

namespace moonshard {

// The file with the states of the ranks' random number generators, within the directory of a step. Each state is a
// tensor of bytes, for example "rank_00000.cpu".
inline constexpr const char* kRandomFile = "moonshard/random.safetensors";

// A set of parameters for which an optimizer keeps the same kinds of state.
struct MemoryRecord {
  JsonValue::Object values;             // state that is not tensors: {"step": 100}
  std::vector<std::string> tensors;     // names of state tensors, sorted: "exp_avg" (see OptimizerTensorName)
  std::vector<std::string> parameters;  // paths, sorted
};

struct OptimizerRecord {
  struct Group {
    JsonValue::Object options;            // {"lr": 0.001}
    std::vector<std::string> parameters;  // paths, in the group's order
  };
  std::string kind;  // OptimizerAdapter::kind
  std::vector<Group> groups;
  std::vector<MemoryRecord> memories;  // a parameter is in at most one of them; in none if it has no state yet
};

struct TrainingRecord {
  int64_t step = 0;
  std::optional<OptimizerRecord> optimizer;
  std::map<std::string, std::string> host;  // texts of the application, by name (TrainingState::host)
  uint64_t random_bytes = 0;                // of kRandomFile
  uint64_t random_hash = 0;

  JsonValue ToJson() const;
  // Returns the record in a manifest. `file` is the name of the manifest in messages. Errors: kNotSupported: the
  // manifest was not written by a training run; kBadManifest, at most 20: a field that is missing, has the wrong type
  // or is out of range (a step is from 0 to 2^53), a number that is not finite, a parameter that is in two groups or
  // memories, or in a memory but in no group. The options and values of the optimizer are not checked here but by its
  // adapter (OptimizerAdapter::Check).
  static Result<TrainingRecord> Of(const Manifest& manifest, const std::string& file);
};

// Returns the name of a state tensor in the checkpoint: "optimizer.exp_avg.layers.0.weight".
std::string OptimizerTensorName(const std::string& tensor, const std::string& parameter);

}  // namespace moonshard
