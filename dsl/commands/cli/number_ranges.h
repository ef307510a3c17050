// NumberRanges: a table with the range of every numeric command-line option, and the parsers of the values. Only
// decimal notation is accepted: no "nan", "0x10", " 5" or "5x". A number that overflows or underflows its type is
// rejected.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moonshard {

enum class NumberKind : uint8_t { kInteger, kReal };

struct NumberRange {
  std::string_view option;  // for example "--steps"; an option has the same range in every verb
  NumberKind kind = NumberKind::kInteger;
  uint64_t least = 0;  // of an integer
  uint64_t most = 0;
  double lowest = 0;  // of a real number
  double highest = 0;
  bool below_highest = false;  // of a real number: `highest` itself is not in the range
  std::string_view unit;       // "steps"; "" for a number without one
};

// Every option whose value is a number, in alphabetical order. Both numbers of --betas have this one range. The numbers
// of --tokens have the ranges of --batch and --sequence.
std::span<const NumberRange> NumberRanges();
// Returns the range of an option. Throws InternalError if the table has no such option.
const NumberRange& RangeOf(std::string_view option);

// Returns "1 to 1048576" or "0 to below 1".
std::string Ends(const NumberRange& range);
// Returns "an integer from 1 to 1048576 (sequences)" or "a number from 0 to below 1".
std::string ToText(const NumberRange& range);

// Parses a number; returns nullopt for text of another form and for a number out of the range.
std::optional<uint64_t> ReadInteger(const NumberRange& range, std::string_view text);
std::optional<double> ReadReal(const NumberRange& range, std::string_view text);

// Returns why `text` is not a number in the range, as a part of a usage error; "" if it is one.
std::string WhyNotIn(const NumberRange& range, std::string_view text);

}  // namespace moonshard
