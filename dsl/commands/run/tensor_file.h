// Tensor files: safetensors (or a JSON file of integers) as tensors in memory, for inputs and comparisons.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"

namespace moonshard {

// Every tensor of the file, by name, on the CPU. A file that ends in .json holds one object of rectangular lists of
// integers: {"input_ids": [[1, 2, 3]]}, read as int64.
// Errors: those of the readers; kBadInput for a JSON file of another form.
Result<std::map<std::string, at::Tensor>> ReadTensorFile(const std::string& path);

}  // namespace moonshard
