#include <algorithm>
#include <limits>

#include "engine/io/exported_program/exported_program.h"

namespace moonshard {
namespace {

using Op = SizeExpression::Op;
using Number = std::optional<int64_t>;

Number Added(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? Number() : Number(out);
}

Number Multiplied(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? Number() : Number(out);
}

// Python rounds towards minus infinity where C++ rounds towards zero.
Number FloorDivided(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return {};
  return a / b - static_cast<int64_t>((a % b != 0) && ((a < 0) != (b < 0)));
}

// With the sign of the divisor, as in Python.
Number Modulo(int64_t a, int64_t b) {
  if (b == 0) return {};
  const int64_t rest = b == -1 ? 0 : a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Number Power(int64_t base, int64_t exponent) {
  if (exponent < 0) return {};
  Number out = 1;
  for (int64_t i = 0; out && i < exponent; ++i) {
    if (base == 0 || base == 1) return base;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    out = Multiplied(*out, base);
  }
  return out;
}

Number Binary(Op op, int64_t a, int64_t b) {
  switch (op) {
    case Op::kAdd: return Added(a, b);
    case Op::kMul: return Multiplied(a, b);
    case Op::kMin: return std::min(a, b);
    case Op::kMax: return std::max(a, b);
    case Op::kFloorDiv: return FloorDivided(a, b);
    case Op::kMod: return Modulo(a, b);
    case Op::kPow: return Power(a, b);
    case Op::kTrueDiv: {  // a size is an integer: any other quotient has no value here
      const Number quotient = FloorDivided(a, b);
      return quotient && a % b == 0 ? quotient : Number();
    }
    case Op::kEq: return a == b;
    case Op::kNe: return a != b;
    case Op::kLt: return a < b;
    case Op::kLe: return a <= b;
    case Op::kGt: return a > b;
    case Op::kGe: return a >= b;
    case Op::kAnd: return a != 0 && b != 0;
    case Op::kOr: return a != 0 || b != 0;
    default: return {};
  }
}

}  // namespace

Number SizeExpression::Evaluate(const std::map<std::string, int64_t, std::less<>>& symbols) const {
  switch (op) {
    case Op::kNumber: return number;
    case Op::kText: return {};
    case Op::kSymbol: {
      const auto found = symbols.find(text);
      return found == symbols.end() ? Number() : Number(found->second);
    }
    case Op::kNot: {
      const Number value = operands[0].Evaluate(symbols);
      return value ? Number(*value == 0) : Number();
    }
    case Op::kSelect: {
      const Number condition = operands[0].Evaluate(symbols);
      return condition ? operands[*condition != 0 ? 1 : 2].Evaluate(symbols) : Number();
    }
    default: {
      Number out = operands[0].Evaluate(symbols);
      for (size_t i = 1; out && i < operands.size(); ++i) {
        const Number next = operands[i].Evaluate(symbols);
        out = next ? Binary(op, *out, *next) : Number();
      }
      return out;
    }
  }
}

void SizeExpression::AddSymbols(std::set<std::string>& names) const {
  if (op == Op::kSymbol) names.insert(text);
  for (const SizeExpression& operand : operands) operand.AddSymbols(names);
}

}  // namespace moonshard
