// NumberRanges: the range of each number of the command line, in one table, and how its text is read: digits as a
// person writes them, so no "nan", "0x10", " 5" or "5x", and nothing that is rounded to the end of a type.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moonshard {

enum class NumberKind : uint8_t { kInteger, kReal };

struct NumberRange {
  std::string_view option;  // "--steps": means the same under each verb that has it
  NumberKind kind = NumberKind::kInteger;
  uint64_t least = 0;  // of an integer
  uint64_t most = 0;
  double lowest = 0;  // of a real number
  double highest = 0;
  bool below_highest = false;  // of a real number: the highest itself is not in the range
  std::string_view unit;       // "steps"; "" for a number without one
};

// Every option with a number, in alphabetical order. The two numbers of --tokens have the ranges of --batch and
// --sequence, those of --betas one range.
std::span<const NumberRange> NumberRanges();
// Throws InternalError where the table has no such option.
const NumberRange& RangeOf(std::string_view option);

// "1 to 1048576", "0 to below 1".
std::string Ends(const NumberRange& range);
// "an integer from 1 to 1048576 (sequences)", "a number from 0 to below 1".
std::string ToText(const NumberRange& range);

// The number; nothing for a text of another form or a number out of the range.
std::optional<uint64_t> ReadInteger(const NumberRange& range, std::string_view text);
std::optional<double> ReadReal(const NumberRange& range, std::string_view text);

// Why `text` is not a number of the range, as a sentence for a usage error; "" if it is one.
std::string WhyNotIn(const NumberRange& range, std::string_view text);

}  // namespace moonshard
