// DType: dtypes of parameters, with their names in safetensors and torch and their numbers in exported programs. Does
// not depend on LibTorch; engine/runtime/dtype converts a DType to a ScalarType.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace moonshard {

enum class DType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// Returns the bits of one element: 4 for kF4, 6 for the F6 types, else a multiple of 8.
int64_t BitsOf(DType dtype);
// Returns the bytes of `elements` elements; elements of less than a byte are packed, and the sum is rounded up to a
// byte.
int64_t BytesOf(DType dtype, int64_t elements);
// "F32", "BF16", "F8_E4M3": the name in a safetensors header.
const char* SafetensorsName(DType dtype);
std::optional<DType> DTypeFromSafetensors(std::string_view name);
// "float32", "bfloat16", "float8_e4m3fn": the name in torch; what explain prints.
const char* ToString(DType dtype);
std::optional<DType> DTypeFromTorch(std::string_view name);
// Returns the number in an exported program (torch._export.serde.schema.ScalarType); 0 if exported programs do not have
// the dtype.
int ExportedNumber(DType dtype);
std::optional<DType> DTypeFromExported(int number);

}  // namespace moonshard
