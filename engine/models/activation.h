// Activation: the elementwise activation functions that configs name.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "engine/models/config_reader.h"

namespace moonshard {

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };

// Returns the activation of each element of `x`.
at::Tensor Activate(Activation activation, const at::Tensor& x);

// Returns the function that a config field names (a name of transformers' ACT2FN); `otherwise` if the field is absent.
// A name that is not supported is an error in the reader's diagnostics.
Activation ReadActivation(ConfigReader& fields, std::string_view name, Activation otherwise);

}  // namespace moonshard
