// NumberOption: an option of the command line that takes a number within its range.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "dsl/commands/cli/number_ranges.h"

namespace moonshard {

// Checks each value against RangeOf(option). An integer becomes its shortest text, for CLI11 takes "010" as octal.
inline CLI::Validator InRange(const std::string& option) {
  const NumberRange& range = RangeOf(option);
  return {[&range](std::string& text) {
            std::string why = WhyNotIn(range, text);
            if (why.empty() && range.kind == NumberKind::kInteger) text = std::to_string(*ReadInteger(range, text));
            return why;
          },
          Ends(range)};
}

// add_option for a `target` of numbers, with their range. `option` is its one name.
template <class Number>
CLI::Option* AddNumber(CLI::App& app, const std::string& option, Number& target, const std::string& description) {
  return app.add_option(option, target, description)->transform(InRange(option));
}

}  // namespace moonshard
