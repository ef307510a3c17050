#include "engine/layout/dtype.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

using namespace moonshard;

TEST_CASE("every dtype has names of its own that lead back to it") {
  std::set<std::string> torch_names;
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const DType dtype = static_cast<DType>(i);
    CHECK(DTypeFromSafetensors(SafetensorsName(dtype)) == dtype);
    CHECK(torch_names.insert(ToString(dtype)).second);
    CHECK(DTypeFromTorch(ToString(dtype)) == dtype);
    CHECK(BitsOf(dtype) > 0);
    const int number = ExportedNumber(dtype);
    if (number != 0) CHECK(DTypeFromExported(number) == dtype);
  }
  CHECK_FALSE(DTypeFromTorch("Float"));
  CHECK_FALSE(DTypeFromSafetensors("f32"));
  CHECK_FALSE(DTypeFromSafetensors(""));
}

TEST_CASE("numbers of dtypes in an exported program are those of torch._export.serde.schema.ScalarType") {
  CHECK(DTypeFromExported(1) == DType::kU8);
  CHECK(DTypeFromExported(7) == DType::kF32);
  CHECK(DTypeFromExported(13) == DType::kBF16);
  CHECK(DTypeFromExported(28) == DType::kU16);
  CHECK(DTypeFromExported(32) == DType::kF8E5M2Fnuz);
  for (const int number : {-1, 0, 9, 11, 33}) CHECK_FALSE(DTypeFromExported(number));
}

TEST_CASE("bytes of packed elements are rounded up") {
  CHECK(BytesOf(DType::kF4, 0) == 0);
  CHECK(BytesOf(DType::kF4, 3) == 2);
  CHECK(BytesOf(DType::kF6E2M3, 4) == 3);
  CHECK(BytesOf(DType::kBF16, 3) == 6);
  CHECK(BytesOf(DType::kC64, 2) == 16);
}
