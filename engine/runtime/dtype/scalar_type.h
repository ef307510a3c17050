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
// Of a plan's name of a dtype ("float16", "bfloat16", "float32", "float64"); nothing for "". Another text is a defect
// (InternalError): the plan language has no other.
std::optional<c10::ScalarType> ScalarTypeNamed(std::string_view name);

}  // namespace moonshard
