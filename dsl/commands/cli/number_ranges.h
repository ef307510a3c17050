// NumberRanges: one table with the range of every number on the command line, and the parser for their text. Only
// decimal notation is accepted: no "nan", "0x10", " 5" or "5x", and no number that would have to be rounded to the
// limit of a type.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moonshard {

enum class NumberKind : uint8_t { kInteger, kReal };

struct NumberRange {
  std::string_view option;  // "--steps": has the same range for every verb
  NumberKind kind = NumberKind::kInteger;
  uint64_t least = 0;  // of an integer
  uint64_t most = 0;
  double lowest = 0;  // of a real number
  double highest = 0;
  bool below_highest = false;  // of a real number: `highest` itself is not in the range
  std::string_view unit;       // "steps"; "" for a number without one
};

// Every option with a number, in alphabetical order. The two numbers of --tokens have the ranges of --batch and
// --sequence. Both numbers of --betas have the same range.
std::span<const NumberRange> NumberRanges();
// Returns the range of an option. Throws InternalError if the table has no such option.
const NumberRange& RangeOf(std::string_view option);

// "1 to 1048576", "0 to below 1".
std::string Ends(const NumberRange& range);
// "an integer from 1 to 1048576 (sequences)", "a number from 0 to below 1".
std::string ToText(const NumberRange& range);

// Parses a number; returns nothing for text of another form or a number out of the range.
std::optional<uint64_t> ReadInteger(const NumberRange& range, std::string_view text);
std::optional<double> ReadReal(const NumberRange& range, std::string_view text);

// Why `text` is not a number in the range, as a sentence for a usage error; "" if it is.
std::string WhyNotIn(const NumberRange& range, std::string_view text);

}  // namespace moonshard
