#include "engine/plan/explain/fold.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

std::string Ranges(const std::set<std::string>& texts) {
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) numbers.push_back(std::stoll(text));
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
  return out + "}";
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

}  // namespace moonshard
