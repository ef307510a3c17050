// DType and ScalarType, and the numbers of exported programs, name the same types.
#include "engine/runtime/dtype/scalar_type.h"

#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include <c10/core/ScalarType.h>

namespace moonshard {
namespace {

TEST_CASE("a dtype and its scalar type have one size, and lead to each other") {
  int without = 0;
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const DType dtype = static_cast<DType>(i);
    INFO(ToString(dtype));
    const std::optional<c10::ScalarType> type = ScalarTypeOf(dtype);
    if (!type) {
      ++without;
      continue;
    }
    CHECK(DTypeOf(*type) == dtype);
    // Two elements of four bits are one of torch.
    CHECK(static_cast<int64_t>(c10::elementSize(*type)) == BytesOf(dtype, dtype == DType::kF4 ? 2 : 1));
  }
  CHECK(without == 2);  // 6-bit floats
  CHECK_FALSE(DTypeOf(c10::kComplexHalf));
  CHECK_FALSE(DTypeOf(c10::kComplexDouble));
  CHECK_FALSE(DTypeOf(c10::kQInt8));
}

TEST_CASE("a plan's names of dtypes") {
  const std::array names = {std::pair{"float16", c10::kHalf}, std::pair{"bfloat16", c10::kBFloat16},
                            std::pair{"float32", c10::kFloat}, std::pair{"float64", c10::kDouble}};
  for (const auto& [name, type] : names) CHECK(ScalarTypeNamed(name) == type);
  CHECK_FALSE(ScalarTypeNamed(""));
}

}  // namespace
}  // namespace moonshard
