// The dtypes that precision and keep_dtype may name, in torch's words.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace moonshard {

inline constexpr std::array<std::string_view, 4> kPrecisionDTypes = {"float32", "bfloat16", "float16", "float64"};

inline bool IsPrecisionDType(std::string_view name) {
  return std::ranges::find(kPrecisionDTypes, name) != kPrecisionDTypes.end();
}

}  // namespace moonshard
