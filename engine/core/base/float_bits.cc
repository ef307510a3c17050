#include "engine/core/base/float_bits.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moonshard {
namespace {

int BiasOf(FloatFormat format) { return (1 << (format.exponent_bits - 1)) - 1; }

// Of infinity.
uint32_t LargestOf(FloatFormat format) { return ((1U << format.exponent_bits) - 1) << format.mantissa_bits; }

}  // namespace

double FromBits(uint16_t bits, FloatFormat format) {
  const uint32_t sign = bits >> 15U;
  const uint32_t magnitude = bits & 0x7FFFU;
  const uint32_t mantissa = magnitude & ((1U << format.mantissa_bits) - 1);
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  double out = 0;
  if (magnitude >= LargestOf(format)) {
    out = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else {
    const uint32_t whole = exponent == 0 ? mantissa : mantissa + (1U << format.mantissa_bits);
    out = std::ldexp(whole, std::max(exponent, 1) - BiasOf(format) - format.mantissa_bits);
  }
  return sign != 0 ? -out : out;
}

// The mantissa is rounded as an integer. Rounded up to a power of two, it carries into the exponent, which is next to
// it.
uint16_t ToBits(double value, FloatFormat format) {
  const uint32_t sign = std::signbit(value) ? 0x8000U : 0;
  const uint32_t largest = LargestOf(format);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | largest | (1U << (format.mantissa_bits - 1)));
  const double magnitude = std::abs(value);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | largest);
  int exponent = 0;
  (void)std::frexp(magnitude, &exponent);
  const int bias = BiasOf(format);
  const int power = std::max(exponent - 1, 1 - bias);  // of the first digit; of a subnormal number, the smallest
  if (power > bias) return static_cast<uint16_t>(sign | largest);
  const auto digits = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - power)));
  const uint32_t bits = (static_cast<uint32_t>(power + bias - 1) << format.mantissa_bits) + digits;
  return static_cast<uint16_t>(sign | std::min(bits, largest));
}

}  // namespace moonshard
