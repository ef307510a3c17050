#include "dsl/commands/repl/path_index.h"

#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "engine/core/base/text.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsPattern(std::string_view text) { return text.find_first_of("*?[{") != std::string_view::npos; }

// The begins of the components of a pattern: dots within braces and brackets ("{0..31}") do not separate.
std::vector<std::string> ComponentsOf(std::string_view pattern) {
  std::vector<std::string> out(1);
  int depth = 0;
  for (char c : pattern) {
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == '.' && depth <= 0) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

std::vector<std::string> Sorted(const std::set<std::string>& texts) {
  std::vector<std::string> out(texts.begin(), texts.end());
  std::ranges::sort(out, NaturalLess);
  return out;
}

// Whether one component of a pattern matches one of a path; a number in a path represents every number.
bool ComponentMatches(const std::string& pattern, const std::string& component) {
  if (pattern == component) return true;
  if (std::ranges::all_of(component, IsDigit) &&
      (std::ranges::all_of(pattern, IsDigit) || pattern.find("..") != std::string::npos))
    return true;
  const Result<Pattern> translated = TranslatePattern(pattern, PatternSyntax::kGlob);
  return translated.ok() && RE2::FullMatch(component, translated.value().regex);
}

}  // namespace

bool NaturalLess(std::string_view a, std::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!IsDigit(a[i]) || !IsDigit(b[j])) {
      if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      ++i;
      ++j;
      continue;
    }
    const auto number = [](std::string_view text, size_t& at) {
      const size_t begin = at;
      while (at < text.size() && IsDigit(text[at])) ++at;
      std::string_view digits = text.substr(begin, at - begin);
      digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
      return digits;
    };
    const std::string_view left = number(a, i);
    const std::string_view right = number(b, j);
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
  }
  return a.size() - i < b.size() - j;
}

// Paths are sorted by bytes, so that the paths with a given prefix are one range, found by binary search: a model with
// 60,000 modules needs no scan per key press. Patterns are matched against one path per path class (layers differ only
// in numbers), which are few.
PathIndex::PathIndex(const ModuleTree& tree) {
  std::vector<bool> seen(tree.class_representatives().size());
  for (const Module& module : tree.modules()) {
    const bool first = !seen[module.path_class];
    seen[module.path_class] = true;
    const auto add = [&](const std::string& path) {
      if (path.empty()) return;
      paths_.push_back(path);
      if (first) classes_.push_back(path);
    };
    add(module.path);
    for (const Parameter& p : tree.parameters(module)) {
      add(module.path.empty() ? p.name : module.path + "." + p.name);
    }
  }
  std::ranges::sort(paths_);
  for (const Module& module : tree.modules()) {
    if (!tree.parameters(module).empty()) leaves_.insert(PathClassOf(module.path));
  }
  for (const Module& module : tree.modules()) {
    std::string_view above = module.path;
    while (!above.empty()) {
      above = ParentOf(above);
      const auto found = leaves_.find(PathClassOf(above));
      if (found != leaves_.end()) leaves_.erase(found);
    }
  }
}

// A leaf has parameters and no module below it. The classes of leaves are stored with "*" for numbers, so a pattern is
// compared component by component, and a number matches a number's place.
bool PathIndex::IsLeaf(std::string_view path) const {
  if (!IsPattern(path)) return leaves_.contains(PathClassOf(path));
  const std::vector<std::string> wanted = ComponentsOf(path);
  return std::ranges::any_of(leaves_, [&](const std::string& leaf) {
    const std::vector<std::string> components = Split(leaf, '.');
    bool matches = components.size() == wanted.size();
    for (size_t i = 0; matches && i < wanted.size(); ++i) {
      matches = components[i] == "*" ? wanted[i].find_first_not_of("0123456789*?.{}[],") == std::string::npos
                                     : ComponentMatches(wanted[i], components[i]);
    }
    return matches;
  });
}

std::vector<std::string> PathIndex::Complete(std::string_view prefix, size_t most) const {
  std::vector<std::string> found;
  std::vector<std::string> done = ComponentsOf(prefix);
  const std::string last = done.back();
  done.pop_back();
  const std::string_view parent = prefix.substr(0, prefix.size() - last.size());
  if (IsPattern(prefix)) {
    for (const std::string& next : CompletePattern(done, last)) found.push_back(std::string(parent) + next);
  } else {
    // Paths with the same component are adjacent: another search finds their end, whatever is below. A component that
    // another one begins with ("q", "q-norm") may have two ranges.
    std::set<std::string> ends;
    for (auto at = std::ranges::lower_bound(paths_, prefix); at != paths_.end() && at->starts_with(prefix);) {
      const size_t end = at->find('.', parent.size());
      if (end == std::string::npos) {
        ends.insert(*at);
        ++at;
        continue;
      }
      const std::string full = at->substr(0, end + 1);
      ends.erase(full.substr(0, end));  // the component's own entry: more follows
      const bool leaf = IsLeaf(std::string_view(full).substr(0, end));
      if (leaf && full.size() == prefix.size() + 1) {
        for (auto param = at; param != paths_.end() && param->starts_with(full); ++param) ends.insert(*param);
      }
      ends.insert(leaf ? full.substr(0, end) : full);
      at = std::lower_bound(at, paths_.end(), full.substr(0, end) + '/');  // '/' follows '.'
    }
    found = Sorted(ends);
  }
  if (found.size() > most) found.resize(most);
  return found;
}

std::vector<std::string> PathIndex::CompletePattern(const std::vector<std::string>& done,
                                                    const std::string& last) const {
  std::set<std::string> next;
  for (const std::string& path : classes_) {
    const std::vector<std::string> components = Split(path, '.');
    if (components.size() <= done.size()) continue;
    bool matches = true;
    for (size_t i = 0; matches && i < done.size(); ++i) matches = ComponentMatches(done[i], components[i]);
    const std::string& here = components[done.size()];
    if (!matches) continue;
    const std::string shown = std::ranges::all_of(here, IsDigit) ? "*" : here;
    if (!shown.starts_with(last)) continue;
    const bool more = components.size() > done.size() + 1;
    const bool leaf = more && leaves_.contains(PathClassOf(Join(std::span(components).first(done.size() + 1), ".")));
    if (leaf && shown == last) next.insert(shown + "." + components[done.size() + 1]);
    next.insert(shown + (more && !leaf ? "." : ""));
  }
  std::erase_if(next, [&](const std::string& text) { return next.contains(text + "."); });
  return Sorted(next);
}

std::string PathIndex::Nearest(std::string_view path) const {
  const std::string wanted = PathClassOf(path);
  std::vector<std::string> classes;
  for (const std::string& known : classes_) classes.push_back(PathClassOf(known));
  const std::string nearest = NearestName(wanted, classes);
  const auto found = std::ranges::find(classes, nearest);
  return nearest.empty() ? "" : classes_[static_cast<size_t>(found - classes.begin())];
}

}  // namespace moonshard
