// Scalar types: conversions between DType (of plans and files) and c10::ScalarType (of tensors).
#pragma once

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "engine/layout/dtype.h"

namespace moonshard {

// Returns nothing for a type that no checkpoint can contain (quantized types, complex half).
std::optional<DType> DTypeOf(c10::ScalarType type);
// Returns nothing for a type that no tensor can have (6-bit floats).
std::optional<c10::ScalarType> ScalarTypeOf(DType dtype);
// The type for the dtype name of a plan ("float16", "bfloat16", "float32", "float64"); nothing for "". Throws
// InternalError for any other name, which a plan cannot contain.
std::optional<c10::ScalarType> ScalarTypeNamed(std::string_view name);

}  // namespace moonshard
