// Sizes are integers and small, so that what overflows is an error and not wrapped. Integers divide towards minus
// infinity, as in Python.
#include <algorithm>
#include <array>
#include <cmath>

#include <c10/util/Exception.h>

#include "engine/models/program/compile_program.h"

namespace moonshard::program {
namespace {

enum Code : int {
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kTrueDiv,
  kMod,
  kPow,
  kMax,
  kMin,
  kNeg,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kAnd,
  kOr,
  kNot,
  kInt,
  kFloat,
  kSqrt,
  kCeil,
  kFloor,
};

struct Name {
  const char* text;
  Code code;
};
constexpr std::array kNames = {
    Name{"add", kAdd},         Name{"sub", kSub},         Name{"mul", kMul},        Name{"floordiv", kFloorDiv},
    Name{"truediv", kTrueDiv}, Name{"mod", kMod},         Name{"pow", kPow},        Name{"pow_by_natural", kPow},
    Name{"sym_max", kMax},     Name{"sym_min", kMin},     Name{"max", kMax},        Name{"min", kMin},
    Name{"neg", kNeg},         Name{"eq", kEq},           Name{"ne", kNe},          Name{"lt", kLt},
    Name{"le", kLe},           Name{"gt", kGt},           Name{"ge", kGe},          Name{"and_", kAnd},
    Name{"or_", kOr},          Name{"sym_not", kNot},     Name{"not_", kNot},       Name{"sym_int", kInt},
    Name{"trunc", kInt},       Name{"sym_float", kFloat}, Name{"_sym_sqrt", kSqrt}, Name{"sym_sqrt", kSqrt},
    Name{"ceil", kCeil},       Name{"floor", kFloor},
};

int64_t Multiplied(int64_t a, int64_t b) {
  int64_t out = 0;
  TORCH_CHECK(!__builtin_mul_overflow(a, b, &out), "a size does not fit into int64");
  return out;
}

int64_t Added(int64_t a, int64_t b) {
  int64_t out = 0;
  TORCH_CHECK(!__builtin_add_overflow(a, b, &out), "a size does not fit into int64");
  return out;
}

int64_t Subtracted(int64_t a, int64_t b) {
  int64_t out = 0;
  TORCH_CHECK(!__builtin_sub_overflow(a, b, &out), "a size does not fit into int64");
  return out;
}

int64_t FloorDivided(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "a size is divided by zero");
  TORCH_CHECK(a != INT64_MIN || b != -1, "a size does not fit into int64");
  return a / b - static_cast<int64_t>((a % b != 0) && ((a < 0) != (b < 0)));
}

// With the sign of the divisor, as in Python.
int64_t Modulo(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "a size is divided by zero");
  const int64_t rest = b == -1 ? 0 : a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

c10::IValue OfIntegers(int code, int64_t a, int64_t b) {
  switch (code) {
    case kAdd: return Added(a, b);
    case kSub: return Subtracted(a, b);
    case kMul: return Multiplied(a, b);
    case kFloorDiv: return FloorDivided(a, b);
    case kTrueDiv:
      TORCH_CHECK(b != 0, "a size is divided by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case kMod: return Modulo(a, b);
    case kPow: {
      if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
      if (a >= -1 && a <= 1) return b == 0 ? 1 : (a == -1 && b % 2 == 0 ? 1 : a);
      int64_t power = 1;
      for (int64_t i = 0; i < b; ++i) power = Multiplied(power, a);  // 63 times at most
      return power;
    }
    case kMax: return std::max(a, b);
    case kMin: return std::min(a, b);
    case kNeg: return Subtracted(0, a);
    case kEq: return a == b;
    case kNe: return a != b;
    case kLt: return a < b;
    case kLe: return a <= b;
    case kGt: return a > b;
    case kGe: return a >= b;
    case kInt:
    case kCeil:
    case kFloor: return a;
    case kFloat: return static_cast<double>(a);
    case kSqrt: return std::sqrt(static_cast<double>(a));
    default: TORCH_CHECK(false, "the operation is not defined for integers");
  }
}

int64_t Rounded(double a) {
  TORCH_CHECK(a > -0x1p63 && a < 0x1p63, "a size does not fit into int64");
  return static_cast<int64_t>(a);
}

c10::IValue OfReals(int code, double a, double b) {
  switch (code) {
    case kAdd: return a + b;
    case kSub: return a - b;
    case kMul: return a * b;
    case kFloorDiv: return std::floor(a / b);
    case kTrueDiv: return a / b;
    case kMod: return a - std::floor(a / b) * b;
    case kPow: return std::pow(a, b);
    case kMax: return std::max(a, b);
    case kMin: return std::min(a, b);
    case kNeg: return -a;
    case kEq: return a == b;
    case kNe: return a != b;
    case kLt: return a < b;
    case kLe: return a <= b;
    case kGt: return a > b;
    case kGe: return a >= b;
    case kInt: return Rounded(a);
    case kFloat: return a;
    case kSqrt: return std::sqrt(a);
    case kCeil: return Rounded(std::ceil(a));
    case kFloor: return Rounded(std::floor(a));
    default: TORCH_CHECK(false, "the operation is not defined for floats");
  }
}

}  // namespace

int ArithmeticCode(const std::string& name) {
  for (const Name& one : kNames) {
    if (name == one.text) return one.code;
  }
  return -1;
}

bool TakesOne(int code) {
  return code == kNeg || code == kNot || code == kInt || code == kFloat || code == kSqrt || code == kCeil ||
         code == kFloor;
}

c10::IValue Arithmetic(int code, const c10::IValue& a, const c10::IValue& b) {
  if (code == kAnd) return a.toBool() && b.toBool();
  if (code == kOr) return a.toBool() || b.toBool();
  if (code == kNot) return !a.toBool();
  if (a.isInt() && (b.isInt() || b.isNone())) return OfIntegers(code, a.toInt(), b.isNone() ? 0 : b.toInt());
  const auto real = [&](const c10::IValue& value) {
    if (value.isNone() && TakesOne(code)) return 0.0;
    return value.isDouble() ? value.toDouble() : static_cast<double>(value.isBool() ? value.toBool() : value.toInt());
  };
  return OfReals(code, real(a), real(b));
}

}  // namespace moonshard::program
