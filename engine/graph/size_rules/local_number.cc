#include "engine/graph/size_rules/local_number.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

namespace moonshard::graph {

double AsFloat(const NumberValue& value) {
  return std::visit([](auto one) { return static_cast<double>(one); }, value);
}

std::optional<double> AsFloat(const std::optional<NumberValue>& value) {
  return value ? std::optional(AsFloat(*value)) : std::nullopt;
}

LocalNumber LocalNumber::Of(std::optional<NumberValue> full, std::optional<NumberValue> local) {
  LocalNumber out;
  const auto set = [](const std::optional<NumberValue>& value, std::optional<int64_t>& integer,
                      std::optional<double>& real) {
    if (!value) return;
    if (const int64_t* one = std::get_if<int64_t>(&*value)) {
      if (*one >= -kLargestSize && *one <= kLargestSize) integer = *one;
    } else if (const double one = std::get<double>(*value); std::isfinite(one)) {
      real = one;
    }
  };
  set(full, out.full, out.full_float);
  set(local, out.local, out.local_float);
  return out;
}

std::optional<NumberValue> LocalNumber::full_value() const {
  if (full) return *full;
  return full_float ? std::optional<NumberValue>(*full_float) : std::nullopt;
}

std::optional<NumberValue> LocalNumber::local_value() const {
  if (local) return *local;
  return local_float ? std::optional<NumberValue>(*local_float) : std::nullopt;
}

bool LocalNumber::follows_shard() const {
  if (known()) return *full != *local;
  if (!known_float()) return computed_from_shard;
  constexpr double kRounding = 1e-12;
  return std::abs(*full_float - *local_float) > kRounding * std::max(std::abs(*full_float), std::abs(*local_float));
}

std::string NumberText(double number) {
  constexpr double kLargestInteger = 0x1p53;
  if (std::abs(number) < kLargestInteger && std::trunc(number) == number) {
    return std::to_string(static_cast<int64_t>(number));
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", number);
  return text.data();
}

namespace {

std::optional<NumberValue> FiniteFloat(double value) {
  return std::isfinite(value) ? std::optional<NumberValue>(value) : std::nullopt;
}

std::optional<NumberValue> IntegerOf(double value) {
  constexpr double kBeyondInt64 = 0x1p63;
  if (!(value > -kBeyondInt64 && value < kBeyondInt64)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<NumberValue> FloatArithmetic(std::string_view name, double a, double b) {
  using Operation = std::optional<NumberValue> (*)(double, double);
  const auto condition = [](bool value) -> std::optional<NumberValue> { return int64_t{value}; };
  static const std::map<std::string_view, Operation> kOperations = {
      {"add", [](double x, double y) { return FiniteFloat(x + y); }},
      {"sub", [](double x, double y) { return FiniteFloat(x - y); }},
      {"mul", [](double x, double y) { return FiniteFloat(x * y); }},
      {"truediv", [](double x, double y) { return FiniteFloat(x / y); }},
      {"floordiv", [](double x, double y) { return FiniteFloat(std::floor(x / y)); }},
      {"mod", [](double x, double y) { return FiniteFloat(x - std::floor(x / y) * y); }},
      {"pow", [](double x, double y) { return FiniteFloat(std::pow(x, y)); }},
      {"pow_by_natural", [](double x, double y) { return FiniteFloat(std::pow(x, y)); }},
      {"sym_max", [](double x, double y) { return FiniteFloat(std::max(x, y)); }},
      {"max", [](double x, double y) { return FiniteFloat(std::max(x, y)); }},
      {"sym_min", [](double x, double y) { return FiniteFloat(std::min(x, y)); }},
      {"min", [](double x, double y) { return FiniteFloat(std::min(x, y)); }},
      {"neg", [](double x, double) { return FiniteFloat(-x); }},
      {"sym_float", [](double x, double) { return FiniteFloat(x); }},
      {"sym_sqrt", [](double x, double) { return FiniteFloat(std::sqrt(x)); }},
      {"_sym_sqrt", [](double x, double) { return FiniteFloat(std::sqrt(x)); }},
      {"sym_int", [](double x, double) { return IntegerOf(x); }},
      {"trunc", [](double x, double) { return IntegerOf(x); }},
      {"ceil", [](double x, double) { return IntegerOf(std::ceil(x)); }},
      {"floor", [](double x, double) { return IntegerOf(std::floor(x)); }},
  };
  if (name == "eq") return condition(a == b);
  if (name == "ne") return condition(a != b);
  if (name == "lt") return condition(a < b);
  if (name == "le") return condition(a <= b);
  if (name == "gt") return condition(a > b);
  if (name == "ge") return condition(a >= b);
  const auto found = kOperations.find(name);
  return found == kOperations.end() ? std::nullopt : found->second(a, b);
}

std::optional<NumberValue> IntegerArithmetic(std::string_view name, int64_t a, int64_t b) {
  using Op = SizeExpression::Op;
  static const std::map<std::string_view, Op> kOps = {
      {"add", Op::kAdd},     {"mul", Op::kMul},  {"floordiv", Op::kFloorDiv},
      {"mod", Op::kMod},     {"pow", Op::kPow},  {"pow_by_natural", Op::kPow},
      {"sym_max", Op::kMax}, {"max", Op::kMax},  {"sym_min", Op::kMin},
      {"min", Op::kMin},     {"and_", Op::kAnd}, {"or_", Op::kOr},
      {"eq", Op::kEq},       {"ne", Op::kNe},    {"lt", Op::kLt},
      {"le", Op::kLe},       {"gt", Op::kGt},    {"ge", Op::kGe}};
  int64_t out = 0;
  if (name == "neg")
    return __builtin_sub_overflow(int64_t{0}, a, &out) ? std::nullopt : std::optional<NumberValue>(out);
  if (name == "sub") return __builtin_sub_overflow(a, b, &out) ? std::nullopt : std::optional<NumberValue>(out);
  if (name == "sym_int" || name == "trunc" || name == "ceil" || name == "floor") return a;
  if (name == "sym_not" || name == "not_") return int64_t{a == 0};
  const auto found = kOps.find(name);
  if (found == kOps.end() || (found->second == Op::kPow && b < 0)) {
    return FloatArithmetic(name, static_cast<double>(a), static_cast<double>(b));
  }
  const auto number = [](int64_t value) {
    SizeExpression one;
    one.number = value;
    return one;
  };
  SizeExpression expression;
  expression.op = found->second;
  expression.operands = {number(a), number(b)};
  const std::optional<int64_t> result = expression.Evaluate({});
  return result ? std::optional<NumberValue>(*result) : std::nullopt;
}

}  // namespace

std::optional<NumberValue> SizeArithmetic(std::string_view name, NumberValue a, NumberValue b) {
  const int64_t* integer_a = std::get_if<int64_t>(&a);
  const int64_t* integer_b = std::get_if<int64_t>(&b);
  if (integer_a != nullptr && integer_b != nullptr) return IntegerArithmetic(name, *integer_a, *integer_b);
  return FloatArithmetic(name, AsFloat(a), AsFloat(b));
}

}  // namespace moonshard::graph
