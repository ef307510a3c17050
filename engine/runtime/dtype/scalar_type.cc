#include "engine/runtime/dtype/scalar_type.h"

#include "engine/plan/compile/precision.h"

#include <algorithm>
#include <array>
#include <utility>

namespace moonshard {
namespace {

using S = c10::ScalarType;

constexpr std::array kPairs = {
    std::pair{DType::kBool, S::Bool},
    std::pair{DType::kF4, S::Float4_e2m1fn_x2},
    std::pair{DType::kU8, S::Byte},
    std::pair{DType::kI8, S::Char},
    std::pair{DType::kF8E5M2, S::Float8_e5m2},
    std::pair{DType::kF8E4M3, S::Float8_e4m3fn},
    std::pair{DType::kF8E8M0, S::Float8_e8m0fnu},
    std::pair{DType::kF8E4M3Fnuz, S::Float8_e4m3fnuz},
    std::pair{DType::kF8E5M2Fnuz, S::Float8_e5m2fnuz},
    std::pair{DType::kI16, S::Short},
    std::pair{DType::kU16, S::UInt16},
    std::pair{DType::kF16, S::Half},
    std::pair{DType::kBF16, S::BFloat16},
    std::pair{DType::kI32, S::Int},
    std::pair{DType::kU32, S::UInt32},
    std::pair{DType::kF32, S::Float},
    std::pair{DType::kC64, S::ComplexFloat},
    std::pair{DType::kF64, S::Double},
    std::pair{DType::kI64, S::Long},
    std::pair{DType::kU64, S::UInt64},
};

}  // namespace

std::optional<DType> DTypeOf(c10::ScalarType type) {
  const auto* row = std::ranges::find(kPairs, type, &decltype(kPairs)::value_type::second);
  return row == kPairs.end() ? std::nullopt : std::optional(row->first);
}

std::optional<c10::ScalarType> ScalarTypeOf(DType dtype) {
  const auto* row = std::ranges::find(kPairs, dtype, &decltype(kPairs)::value_type::first);
  return row == kPairs.end() ? std::nullopt : std::optional(row->second);
}

std::optional<c10::ScalarType> ScalarTypeNamed(std::string_view name) {
  const std::optional<DType> dtype = DTypeNamed(name);
  return dtype ? ScalarTypeOf(*dtype) : std::nullopt;
}

}  // namespace moonshard
