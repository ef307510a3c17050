// CheckpointIndex: model.safetensors.index.json, which names the file of a directory that holds each tensor.
// Stage after: checkpoint.h, which compares the files with it.
#pragma once

#include <map>
#include <string>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"

namespace moonshard {

struct CheckpointIndex {
  std::map<std::string, std::string> file_of;  // tensor name -> file name within the directory
};

// The index in `json`, which was read from the file `path`. Errors: those of ReadCheckpointIndex but for its JSON.
Result<CheckpointIndex> CheckpointIndexFrom(const JsonValue& json, const std::string& path);

// Reads {"metadata": {...}, "weight_map": {"tensor": "file"}}. Errors, all that are found: those of ReadJsonFile (a
// duplicated tensor is kBadJson); kBadIndex: no weight_map, or one that is not an object of texts; a file name
// that is empty, absolute or leads out of the directory.
Result<CheckpointIndex> ReadCheckpointIndex(const std::string& path);

}  // namespace moonshard
