// NumberOption: an option of the command line whose value is a number in a range.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "dsl/commands/cli/number_ranges.h"

namespace moonshard {

// Checks each value against RangeOf(option). Rewrites an integer in its shortest form, because CLI11 reads "010" as
// octal.
inline CLI::Validator InRange(const std::string& option) {
  const NumberRange& range = RangeOf(option);
  return {[&range](std::string& text) {
            std::string why = WhyNotIn(range, text);
            if (why.empty() && range.kind == NumberKind::kInteger) text = std::to_string(*ReadInteger(range, text));
            return why;
          },
          Ends(range)};
}

// Adds an option whose value is a number, or several numbers, in the range of the option. `option` is its only name.
template <class Number>
CLI::Option* AddNumber(CLI::App& app, const std::string& option, Number& target, const std::string& description) {
  return app.add_option(option, target, description)->transform(InRange(option));
}

}  // namespace moonshard
