// TensorFile: reads safetensors, or a JSON file of integers, as tensors in memory, for inputs and comparisons.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"

namespace moonshard {

// Returns every tensor of the file, by name, on the CPU. A file whose name ends in .json holds one object of
// rectangular lists of integers, which are read as int64: {"input_ids": [[1, 2, 3]]}.
// Errors: those of the readers; kBadInput for a JSON file of another form.
Result<std::map<std::string, at::Tensor>> ReadTensorFile(const std::string& path);

}  // namespace moonshard
