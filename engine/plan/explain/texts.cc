#include "engine/plan/explain/texts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/layout/module_tree.h"
#include "engine/layout/redistributions.h"
#include "engine/plan/compile/cost.h"

namespace moonshard {
namespace {

std::string Ranges(const std::set<std::string>& texts) {
  std::vector<int64_t> numbers;
  std::vector<std::string> others;  // what is no number of int64_t, or another text than the number's own ("01")
  for (const std::string& text : texts) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size() && std::to_string(number) == text) {
      numbers.push_back(number);
    } else {
      others.push_back(text);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  std::string out = "{";
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    if (begin > 0) out += ",";
    out += std::to_string(numbers[begin]);
    if (end > begin) out += (end == begin + 1 ? "," : "..") + std::to_string(numbers[end]);
    begin = end + 1;
  }
  if (!numbers.empty() && !others.empty()) out += ",";
  return out + Join(others, ",") + "}";
}

}  // namespace

std::string FoldPaths(const std::vector<std::string>& paths) {
  Check(!paths.empty(), "nothing to fold");
  const std::vector<std::string> first = Split(paths.front(), '.');
  std::vector<std::set<std::string>> values(first.size());
  for (const std::string& path : paths) {
    const std::vector<std::string> components = Split(path, '.');
    Check(components.size() == first.size(), "paths of different classes");
    for (size_t i = 0; i < components.size(); ++i) values[i].insert(components[i]);
  }
  std::vector<std::string> out;
  for (const std::set<std::string>& value : values) out.push_back(value.size() == 1 ? *value.begin() : Ranges(value));
  return Join(out, ".");
}

std::string FoldClasses(const std::vector<std::string>& paths) {
  std::map<std::string, std::vector<std::string>> by_class;
  for (const std::string& path : paths) by_class[PathClassOf(path)].push_back(path);
  std::vector<std::string> texts;
  for (const auto& [name, of_class] : by_class) texts.push_back(FoldPaths(of_class));
  return Join(texts, ", ");
}

std::string BytesText(int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; (value >= 1024 || value <= -1024) && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text.data();
}

std::string RedistributionText(const Redistribution& redistribution) {
  return redistribution.from == redistribution.to ? redistribution.from.ToText()
                                                  : redistribution.from.ToText() + " -> " + redistribution.to.ToText();
}

}  // namespace moonshard
