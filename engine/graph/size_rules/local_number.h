// LocalNumber: a number of the graph, in the full model and on a rank. Internal to engine/graph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "engine/graph/local_sizes.h"

namespace moonshard::graph {

// Larger sizes and integers count as unknown, so that the product of any two of them fits int64.
inline constexpr int64_t kLargestSize = int64_t{1} << 31;

// The value of a number of the graph: an integer (of a bool 0 or 1) or a float.
using NumberValue = std::variant<int64_t, double>;

// A number that the graph contains or computes, in the full model and on this rank. The number is unknown if it depends
// on data.
struct LocalNumber {
  std::optional<int64_t> full;  // of an integer or a bool
  std::optional<int64_t> local;
  int32_t origin = LocalDim::kNone;  // the origin of the sharded dim that the number depends on
  bool literal = false;              // written in the graph
  std::optional<double> full_float;  // of a float
  std::optional<double> local_float;
  bool computed_from_shard = false;  // computed from a number that follows a shard; its values may be unknown

  // Returns the number with these values. An integer beyond kLargestSize or a float that is not finite is unknown.
  static LocalNumber Of(std::optional<NumberValue> full, std::optional<NumberValue> local);
  std::optional<NumberValue> full_value() const;
  std::optional<NumberValue> local_value() const;

  bool known() const { return full && local; }
  bool known_float() const { return full_float && local_float; }
  // Whether the number is computed from a size of a tensor whose layout is unknown.
  bool layout_unknown() const { return full_value() && !local_value() && !computed_from_shard; }
  // Whether the number on this rank is not that of the full model; true if the values are unknown but computed from a
  // number that follows a shard. Floats that differ by rounding are equal.
  bool follows_shard() const;
};

// Returns the decimal text of a number for messages, of a fraction with six digits.
std::string NumberText(double number);

// The value as a float.
double AsFloat(const NumberValue& value);
std::optional<double> AsFloat(const std::optional<NumberValue>& value);

// Evaluates Python arithmetic on numbers by the name in the graph ("floordiv"), with the results of Arithmetic
// (engine/models/program/compile_program.h). `b` is not used if the operation takes one operand. Returns nullopt if the
// operation is not defined for the operands or the result is not finite or does not fit into int64.
std::optional<NumberValue> SizeArithmetic(std::string_view name, NumberValue a, NumberValue b);

}  // namespace moonshard::graph
