// FloatBits: every number of both formats, and what lies between neighbours.
#include "engine/core/base/float_bits.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace moonshard::test {
namespace {

TEST_CASE("every number of a 16-bit format is itself, and between two the nearest is taken, or the even one") {
  for (const FloatFormat format : {kFloat16, kBFloat16}) {
    INFO("mantissa of " << format.mantissa_bits << " bits");
    const auto infinity = static_cast<uint16_t>(((1U << format.exponent_bits) - 1) << format.mantissa_bits);
    int wrong = 0;
    for (uint32_t bits = 0; bits < infinity; ++bits) {
      const auto low = static_cast<uint16_t>(bits);
      const auto high = static_cast<uint16_t>(bits + 1);
      const double a = FromBits(low, format);
      // Behind the largest number, the next one of the same distance.
      const double b =
          high == infinity ? 2 * a - FromBits(static_cast<uint16_t>(bits - 1), format) : FromBits(high, format);
      wrong += !(a < b);
      wrong += ToBits(a, format) != low;
      wrong += ToBits(-a, format) != (low | 0x8000U);
      const double middle = a + (b - a) / 2;
      wrong += ToBits(middle, format) != (bits % 2 == 0 ? low : high);
      wrong += ToBits(std::nextafter(middle, a), format) != low;
      wrong += ToBits(std::nextafter(middle, b), format) != high;
    }
    CHECK(wrong == 0);
    CHECK(FromBits(infinity, format) == std::numeric_limits<double>::infinity());
    CHECK(ToBits(-std::numeric_limits<double>::infinity(), format) == (infinity | 0x8000U));
    CHECK(ToBits(1e300, format) == infinity);
    CHECK(ToBits(1e-300, format) == 0);
    CHECK(std::isnan(FromBits(ToBits(std::nan(""), format), format)));
  }
  for (const auto& [value, bits] : {std::pair(1.0, 0x3C00), {65504.0, 0x7BFF}, {65520.0, 0x7C00}, {0x1p-24, 0x0001}})
    CHECK(ToBits(value, kFloat16) == bits);
  for (const auto& [value, bits] : {std::pair(1.0, 0x3F80), {3.140625, 0x4049}, {0x1.fep127, 0x7F7F}})
    CHECK(ToBits(value, kBFloat16) == bits);
}

}  // namespace
}  // namespace moonshard::test
