// Patterns as text. Names in braces are shortened by their common beginning and end, but only at a '_' or '.':
// "{gate,up}_proj" is readable, braces around accidental common letters are not. A name that would become empty in the
// braces prevents the shortening.
#include "dsl/planning/suggest/pattern_text.h"

#include <algorithm>
#include <string_view>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// The length of the text outside the braces, up to its last '_' or '.'.
size_t CommonEnd(const std::vector<std::string>& names) {
  std::string end = names.front();
  for (const std::string& name : names) {
    while (!name.ends_with(end)) end.erase(0, 1);
  }
  const size_t start = end.find_first_of("_.");
  return start == std::string::npos ? 0 : end.size() - start;
}

size_t CommonBegin(const std::vector<std::string>& names) {
  std::string begin = names.front();
  for (const std::string& name : names) {
    while (!name.starts_with(begin)) begin.pop_back();
  }
  const size_t last = begin.find_last_of("_.");
  if (last != std::string::npos) return last + 1;
  // "wq", "wk", "wv": one letter for all.
  const bool short_names = std::ranges::all_of(names, [](const std::string& name) { return name.size() == 2; });
  return short_names ? begin.size() : 0;
}

}  // namespace

std::string Literally(const std::string& text) {
  std::vector<std::string> components = Split(text, '.');
  for (std::string& component : components) {
    if (component == "*") continue;
    std::string out;
    for (const char c : component) {
      const bool means_something = std::string_view("*?[]{},").find(c) != std::string_view::npos;
      out += means_something ? std::string("[") + c + "]" : std::string(1, c);
    }
    component = std::move(out);
  }
  return Join(components, ".");
}

std::string Braces(const std::vector<std::string>& names) {
  if (names.size() == 1) return names.front();
  const size_t begin = CommonBegin(names);
  size_t end = CommonEnd(names);
  std::vector<std::string> middles;
  for (const std::string& name : names) {
    if (name.size() <= begin + end) end = 0;
  }
  for (const std::string& name : names) middles.push_back(name.substr(begin, name.size() - begin - end));
  if (std::ranges::any_of(middles, &std::string::empty)) return "{" + Join(names, ",") + "}";
  return names.front().substr(0, begin) + "{" + Join(middles, ",") + "}" +
         names.front().substr(names.front().size() - end);
}

std::string Numbers(const std::set<int64_t>& numbers) {
  const int64_t first = *numbers.begin();
  const int64_t last = *numbers.rbegin();
  if (numbers.size() == 1) return std::to_string(first);
  if (numbers.size() > 2 && last - first + 1 == static_cast<int64_t>(numbers.size())) {
    return "{" + std::to_string(first) + ".." + std::to_string(last) + "}";
  }
  std::vector<std::string> texts;
  for (const int64_t number : numbers) texts.push_back(std::to_string(number));
  return "{" + Join(texts, ",") + "}";
}

}  // namespace moonshard
