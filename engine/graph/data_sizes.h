// DataSizes: sizes for dims whose sizes depend on data, which the trace does not know.
// Stage before: engine/io/exported_program. Stages after: local_sizes.h, engine/models/program/trial.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/io/exported_program/exported_program.h"

namespace moonshard::graph {

// Returns the value of an expression of sympy as torch.export writes it: sums, products, minima, maxima, quotients
// rounded down, remainders, and powers of Integer(n) and Symbol('s0', ...). nullopt: another expression, or a symbol
// without a value.
std::optional<int64_t> ValueOf(std::string_view expression, const std::map<std::string, int64_t, std::less<>>& symbols);

// Returns the program with a size of 3 for each symbol that depends on data, in the sizes of all values; a size whose
// expression has no value, or one below 0, stays 0.
ExportedProgram WithDataSizes(const ExportedProgram& program);

// A program with sizes for the dims that depend on data: `program` itself, if it has none. Refers to `program`.
class DataSized {
 public:
  explicit DataSized(const ExportedProgram& program);
  const ExportedProgram& program() const { return sized_ ? *sized_ : program_; }

 private:
  const ExportedProgram& program_;
  std::optional<ExportedProgram> sized_;
};

}  // namespace moonshard::graph
