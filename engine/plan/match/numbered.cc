// A numbered key is compared backwards: transformers rewrites the name and looks it up, here the key is rewritten to
// an expression that matches the names which would be rewritten to it. Both are equal only if the corner cases are,
// and the corner is that one match of their expression eats the dot behind its number. For the name a.1.2.3.b:
//
//   .1.  ->  .*      its trailing dot is gone, and so .2 has no dot in front: a.*.2
//   .3.  ->  .*      begins at the dot behind 2: a.*.2.*.b
//
// So every other number of a run stays, and keys that ask for anything else are never found (WhyNeverFound).
#include "engine/plan/match/pattern.h"

#include <re2/re2.h>

#include <algorithm>
#include <vector>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// An expression that matches no text.
constexpr const char* kNothing = "[^\\x00-\\x{10FFFF}]";

bool IsNumber(const std::string& component) {
  return !component.empty() && std::ranges::all_of(component, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string NumberedKeyOf(std::string_view name) {
  // transformers' expression is \.\d+(\.|$), replaced by ".*\1". A match consumes the dot behind the number, so a
  // number directly behind a replaced one has no dot left to begin with.
  std::vector<std::string> components = Split(name, '.');
  for (size_t i = 1; i < components.size(); ++i) {
    if (components[i - 1] != "*" && IsNumber(components[i])) components[i] = "*";
  }
  return Join(components, ".");
}

std::string WhyNeverFound(std::string_view key) {
  const std::vector<std::string> components = Split(key, '.');
  for (size_t i = 0; i < components.size(); ++i) {
    const bool after_star = i > 0 && components[i - 1] == "*";
    if (components[i] == "*" && i == 0) return "transformers never replaces the first component of a name by *";
    if (components[i] == "*" && after_star)
      return "of two consecutive numbers, transformers replaces only the first by *";
    if (components[i] != "*" && components[i].find('*') != std::string::npos) {
      return "* matches a full component that is a number, not a part of a component";
    }
    if (i > 0 && !after_star && IsNumber(components[i])) {
      return "transformers replaces the numbers in a name by * before the name is looked up: write * for " +
             components[i];
    }
  }
  return "";
}

Pattern TranslateNumbered(std::string_view key) {
  Pattern pattern;
  if (!WhyNeverFound(key).empty()) {
    pattern.regex = kNothing;
    return pattern;
  }
  for (const std::string& component : Split(key, '.')) {
    if (!pattern.regex.empty()) pattern.regex += "\\.";
    pattern.regex += component == "*" ? "[0-9]+" : RE2::QuoteMeta(component);
    pattern.depends_on_numbers |= IsNumber(component);
  }
  return pattern;
}

}  // namespace moonshard
