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
  int exported;  // 0: programs do not have it
};

constexpr std::array kRows = {
    Row{DType::kBool, 8, "BOOL", "bool", 12},
    Row{DType::kF4, 4, "F4", "float4_e2m1fn", 0},
    Row{DType::kF6E2M3, 6, "F6_E2M3", "float6_e2m3fn", 0},
    Row{DType::kF6E3M2, 6, "F6_E3M2", "float6_e3m2fn", 0},
    Row{DType::kU8, 8, "U8", "uint8", 1},
    Row{DType::kI8, 8, "I8", "int8", 2},
    Row{DType::kF8E5M2, 8, "F8_E5M2", "float8_e5m2", 30},
    Row{DType::kF8E4M3, 8, "F8_E4M3", "float8_e4m3fn", 29},
    Row{DType::kF8E8M0, 8, "F8_E8M0", "float8_e8m0fnu", 0},
    Row{DType::kF8E4M3Fnuz, 8, "F8_E4M3FNUZ", "float8_e4m3fnuz", 31},
    Row{DType::kF8E5M2Fnuz, 8, "F8_E5M2FNUZ", "float8_e5m2fnuz", 32},
    Row{DType::kI16, 16, "I16", "int16", 3},
    Row{DType::kU16, 16, "U16", "uint16", 28},
    Row{DType::kF16, 16, "F16", "float16", 6},
    Row{DType::kBF16, 16, "BF16", "bfloat16", 13},
    Row{DType::kI32, 32, "I32", "int32", 4},
    Row{DType::kU32, 32, "U32", "uint32", 0},
    Row{DType::kF32, 32, "F32", "float32", 7},
    Row{DType::kC64, 64, "C64", "complex64", 10},
    Row{DType::kF64, 64, "F64", "float64", 8},
    Row{DType::kI64, 64, "I64", "int64", 5},
    Row{DType::kU64, 64, "U64", "uint64", 0},
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
int ExportedNumber(DType dtype) { return RowOf(dtype).exported; }

std::optional<DType> DTypeFromSafetensors(std::string_view name) {
  const auto* row = std::ranges::find_if(kRows, [&](const Row& r) { return name == r.safetensors; });
  return row == kRows.end() ? std::nullopt : std::optional(row->dtype);
}

std::optional<DType> DTypeFromTorch(std::string_view name) {
  const auto* row = std::ranges::find_if(kRows, [&](const Row& r) { return name == r.torch; });
  return row == kRows.end() ? std::nullopt : std::optional(row->dtype);
}

std::optional<DType> DTypeFromExported(int number) {
  const auto* row = number == 0 ? kRows.end() : std::ranges::find(kRows, number, &Row::exported);
  return row == kRows.end() ? std::nullopt : std::optional(row->dtype);
}

}  // namespace moonshard
