// DType of plans and files <-> ScalarType of tensors.
#pragma once

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "engine/layout/dtype.h"

namespace moonshard {

// Nothing for a type that no checkpoint can hold (quantized types, complex half).
std::optional<DType> DTypeOf(c10::ScalarType type);
// Nothing for a type that no tensor can hold (6-bit floats).
std::optional<c10::ScalarType> ScalarTypeOf(DType dtype);
// By torch's name ("bfloat16"); nothing for "" and for a name that is none.
std::optional<c10::ScalarType> ScalarTypeNamed(std::string_view name);

// Of a plan's name of a dtype ("bfloat16"); none for "".
std::optional<c10::ScalarType> ScalarTypeNamed(std::string_view name);

}  // namespace moonshard
