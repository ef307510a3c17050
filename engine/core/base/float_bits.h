// FloatBits: numbers in the 16-bit formats of floats, as their bits: float16 (IEEE 754 binary16) and bfloat16 (the
// upper half of a float32).
#pragma once

#include <cstdint>

namespace moonshard {

struct FloatFormat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
};
inline constexpr FloatFormat kFloat16{5, 10};
inline constexpr FloatFormat kBFloat16{8, 7};

// Exact, also for subnormal numbers, infinities and NaN.
double FromBits(uint16_t bits, FloatFormat format);
// The nearest number of the format; of two, the one with an even mantissa. Beyond the largest number, infinity.
uint16_t ToBits(double value, FloatFormat format);

}  // namespace moonshard
