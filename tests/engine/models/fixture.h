// The recorded checkpoints of tests/parity (make_fixtures.py), read whole.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/json.h"

namespace moonshard::test {

using NamedTensors = std::map<std::string, at::Tensor>;

// The directories of tests/parity that hold a checkpoint, sorted.
std::vector<std::filesystem::path> ParityFolders();
// All tensors of a checkpoint directory or of one file. Throws PlanError.
NamedTensors ReadTensors(const std::filesystem::path& folder_or_file);
JsonValue ReadConfig(const std::filesystem::path& folder);

// The largest difference, relative to the largest magnitude of `expected`; infinite where shapes differ or anything is
// not finite.
double RelativeError(const at::Tensor& found, const at::Tensor& expected);

}  // namespace moonshard::test
