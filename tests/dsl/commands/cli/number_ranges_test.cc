// The ranges of the numbers of the command line: each table row by its ends, as a text and through the parser.
#include "dsl/commands/cli/number_ranges.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

namespace moonshard::test {
namespace {

std::string Exact(double number) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.17g", number);
  return text;
}

TEST_CASE("the ends of every range are in it, and what follows them is not") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const NumberRange& range : NumberRanges()) {
    INFO(range.option);
    std::vector<std::string> inside;
    std::vector<std::string> outside;
    if (range.kind == NumberKind::kInteger) {
      CHECK(range.least <= range.most);
      inside = {std::to_string(range.least), std::to_string(range.most), "0" + std::to_string(range.most)};
      outside = {"-1", "1.0", "1e2", "18446744073709551616"};
      if (range.least > 0) outside.push_back(std::to_string(range.least - 1));
      if (range.most < std::numeric_limits<uint64_t>::max()) outside.push_back(std::to_string(range.most + 1));
    } else {
      CHECK(range.lowest < range.highest);
      inside = {Exact(range.lowest), Exact(std::nextafter(range.highest, 0))};
      outside = {"-1", Exact(std::nextafter(range.lowest, -kInfinity)),
                 Exact(std::nextafter(range.highest, kInfinity))};
      (range.below_highest ? outside : inside).push_back(Exact(range.highest));
    }
    for (const std::string& text : inside) CHECK(WhyNotIn(range, text) == "");
    for (const char* text : {"", " ", "x", "nan", "-nan", "inf", "-inf", "1e999", "99999999999999999999999999999999",
                             "0x1", " 1", "1 ", "1x", "+1", "1,0", "--", "1e-999"}) {
      outside.emplace_back(text);
    }
    for (const std::string& text : outside) CHECK(WhyNotIn(range, text) == "'" + text + "' is not " + ToText(range));
  }
  CHECK(std::ranges::is_sorted(NumberRanges(), {}, &NumberRange::option));
}

TEST_CASE("a range as a text") {
  CHECK(ToText(RangeOf("--batch")) == "an integer from 1 to 1048576 (sequences)");
  CHECK(ToText(RangeOf("--betas")) == "a number from 0 to below 1");
  CHECK(ToText(RangeOf("--clip")) == "a number from 0 to 1e+30");
  CHECK(ToText(RangeOf("--timeout")) == "a number from 0.001 to 31536000 (seconds)");
}

}  // namespace
}  // namespace moonshard::test
