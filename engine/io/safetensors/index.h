// CheckpointIndex: the content of model.safetensors.index.json, which maps each tensor of a directory to the file that
// contains it.
// Stage after: checkpoint.h, which compares the files with the index.
#pragma once

#include <map>
#include <string>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"

namespace moonshard {

struct CheckpointIndex {
  std::map<std::string, std::string> file_of;  // tensor name -> file name within the directory
};

// Returns the index in `json`, which was read from the file `path`. Errors: the kBadIndex errors of
// ReadCheckpointIndex.
Result<CheckpointIndex> CheckpointIndexFrom(const JsonValue& json, const std::string& path);

// Reads {"metadata": {...}, "weight_map": {"tensor": "file"}}. Errors, all that are found: those of ReadJsonFile (a
// duplicated tensor is kBadJson); kBadIndex: weight_map is missing or is not an object of strings, or a file name is
// empty, is absolute or leads out of the directory.
Result<CheckpointIndex> ReadCheckpointIndex(const std::string& path);

}  // namespace moonshard
