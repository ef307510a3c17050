#include "engine/layout/dtype.h"

#include <algorithm>
#include <array>

#include "engine/core/base/check.h"

namespace moonshard {
namespace {

struct Row {
  DType dtype;
  int bits;
  const char* safetensors;
  const char* torch;
};

constexpr std::array kRows = {
    Row{DType::kBool, 8, "BOOL", "bool"},
    Row{DType::kF4, 4, "F4", "float4_e2m1fn"},
    Row{DType::kF6E2M3, 6, "F6_E2M3", "float6_e2m3fn"},
    Row{DType::kF6E3M2, 6, "F6_E3M2", "float6_e3m2fn"},
    Row{DType::kU8, 8, "U8", "uint8"},
    Row{DType::kI8, 8, "I8", "int8"},
    Row{DType::kF8E5M2, 8, "F8_E5M2", "float8_e5m2"},
    Row{DType::kF8E4M3, 8, "F8_E4M3", "float8_e4m3fn"},
    Row{DType::kF8E8M0, 8, "F8_E8M0", "float8_e8m0fnu"},
    Row{DType::kF8E4M3Fnuz, 8, "F8_E4M3FNUZ", "float8_e4m3fnuz"},
    Row{DType::kF8E5M2Fnuz, 8, "F8_E5M2FNUZ", "float8_e5m2fnuz"},
    Row{DType::kI16, 16, "I16", "int16"},
    Row{DType::kU16, 16, "U16", "uint16"},
    Row{DType::kF16, 16, "F16", "float16"},
    Row{DType::kBF16, 16, "BF16", "bfloat16"},
    Row{DType::kI32, 32, "I32", "int32"},
    Row{DType::kU32, 32, "U32", "uint32"},
    Row{DType::kF32, 32, "F32", "float32"},
    Row{DType::kC64, 64, "C64", "complex64"},
    Row{DType::kF64, 64, "F64", "float64"},
    Row{DType::kI64, 64, "I64", "int64"},
    Row{DType::kU64, 64, "U64", "uint64"},
};

const Row& RowOf(DType dtype) {
  const auto* row = std::ranges::find(kRows, dtype, &Row::dtype);
  Check(row != kRows.end(), "a dtype without a row in the table");
  return *row;
}

}  // namespace

int64_t BitsOf(DType dtype) { return RowOf(dtype).bits; }
int64_t BytesOf(DType dtype, int64_t elements) { return (BitsOf(dtype) * elements + 7) / 8; }
const char* SafetensorsName(DType dtype) { return RowOf(dtype).safetensors; }
const char* ToString(DType dtype) { return RowOf(dtype).torch; }

std::optional<DType> DTypeFromSafetensors(std::string_view name) {
  const auto* row = std::ranges::find_if(kRows, [&](const Row& r) { return name == r.safetensors; });
  if (row == kRows.end()) return std::nullopt;
  return row->dtype;
}

}  // namespace moonshard
