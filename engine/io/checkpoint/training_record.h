// TrainingRecord: the state of a training run besides its tensors; in the manifest's `extra`, under "training". Plain
// data: reading it needs no LibTorch.
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

// The file of the ranks' generators, within the step's directory: tensors "rank_00000.cpu", bytes.
inline constexpr const char* kRandomFile = "moonshard/random.safetensors";

// Parameters for which an optimizer keeps the same kinds of state.
struct MemoryRecord {
  JsonValue::Object values;             // {"step": 100}
  std::vector<std::string> tensors;     // "exp_avg"; in the checkpoint OptimizerTensorName, sorted
  std::vector<std::string> parameters;  // paths, sorted
};

struct OptimizerRecord {
  struct Group {
    JsonValue::Object options;            // {"lr": 0.001}
    std::vector<std::string> parameters;  // paths, in the group's order
  };
  std::string kind;  // OptimizerAdapter::kind
  std::vector<Group> groups;
  std::vector<MemoryRecord> memories;  // no parameter twice; one that is in none has no memory yet
};

struct TrainingRecord {
  int64_t step = 0;
  std::optional<OptimizerRecord> optimizer;
  std::map<std::string, std::string> host;  // the host's texts
  uint64_t random_bytes = 0;                // of kRandomFile
  uint64_t random_hash = 0;

  JsonValue ToJson() const;
  // Of a manifest. Errors: kNotSupported where it was not written by a training run; kBadManifest, at most 20: a field
  // that is missing, of another kind or out of its range (a step is from 0 to 2^53), a number that is not finite, a
  // parameter that is in two groups or memories, or in a memory and no group. `file` is what errors call the manifest.
  // Which options and values an optimizer can have is for its adapter to say (OptimizerAdapter::Check).
  static Result<TrainingRecord> Of(const Manifest& manifest, const std::string& file);
};

// "optimizer.exp_avg.layers.0.weight".
std::string OptimizerTensorName(const std::string& tensor, const std::string& parameter);

}  // namespace moonshard
