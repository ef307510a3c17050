// Activation: the elementwise functions that configs name.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "engine/models/config_reader.h"

namespace moonshard {

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };

at::Tensor Activate(Activation activation, const at::Tensor& x);

// The function that a config field names as transformers' ACT2FN does; `otherwise` where the field is absent. An error
// where it names one that is not computed here.
Activation ReadActivation(ConfigReader& fields, std::string_view name, Activation otherwise);

}  // namespace moonshard
