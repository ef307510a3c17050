#include "engine/plan/match/coverage.h"

#include <re2/re2.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "engine/core/base/join_first.h"
#include "engine/core/base/text.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

// The order of guesses: known mistakes first, then typos
//
// A pattern that matches nothing is either written in another notation, or misspelled. Notation is tried first, by
// rewriting the pattern as each mistake would have meant it, and accepting the first rewriting that matches something:
// that is certain, while edit distance always finds some path. A typo is then searched among paths of the same number
// of components, component by component, so that "*" costs nothing and one wrong word is close. If even the nearest
// differs in half of its letters, examples of real paths help more than a guess.
//
// Searches use one path of each class: 60 layers are one path, and the result does not depend on how many there are.
constexpr size_t kMostExamples = 6;
constexpr size_t kMostChildren = 12;

bool IsNumberText(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// What a rule's pattern can match: paths of modules, or of parameters.
std::vector<std::string> PathsFor(const ModuleTree& tree, bool parameters, const std::vector<uint32_t>& modules) {
  std::vector<std::string> out;
  for (uint32_t m : modules) {
    if (!parameters) {
      out.push_back(tree.modules()[m].path);
      continue;
    }
    for (uint32_t p = 0; p < tree.parameters(tree.modules()[m]).size(); ++p) out.push_back(tree.PathOf({m, p}));
  }
  return out;
}

std::vector<std::string> Matching(const std::vector<std::string>& paths, const std::string& pattern) {
  std::vector<std::string> out;
  const Result<Pattern> translated = TranslatePattern(pattern, PatternSyntax::kGlob);
  if (!translated.ok()) return out;
  const RE2 re(translated.value().regex, RE2::Quiet);
  for (const std::string& path : paths) {
    if (re.ok() && RE2::FullMatch(path, re)) out.push_back(path);
  }
  return out;
}

// The edit distance of one component of a pattern from a real one; 0 if it matches, at least 1 if it does not.
// Components and not whole paths are compared: "*" has an edit distance of its own to every name and would drown the
// one wrong word.
size_t ComponentDistance(const std::string& component, const std::string& real) {
  const Result<Pattern> pattern = TranslatePattern(component, PatternSyntax::kGlob);
  if (!pattern.ok()) return EditDistance(component, real);
  if (RE2::FullMatch(real, RE2(pattern.value().regex))) return 0;
  return std::max<size_t>(1, EditDistance(component, real));
}

struct Nearest {
  std::string path;     // a real path
  std::string pattern;  // the pattern with the wrong components replaced
};

// The real path nearest to a glob of the same number of components, if any is near enough to be a typo of it. Only the
// wrong components are taken from the real path, so that the suggestion keeps the author's stars:
//
//   pattern   model.layers.*.mlp.gate_porj      nearest path   model.layers.0.mlp.gate_proj
//   suggestion   model.layers.*.mlp.gate_proj, which matches all layers and not only 0
std::optional<Nearest> NearestPath(const std::vector<std::string>& paths, const std::string& pattern) {
  const std::vector<std::string> wanted = Split(pattern, '.');
  std::optional<Nearest> best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const std::string& path : paths) {
    const std::vector<std::string> real = Split(path, '.');
    if (real.size() != wanted.size()) continue;
    std::vector<std::string> corrected = wanted;
    size_t distance = 0;
    for (size_t i = 0; i < real.size(); ++i) {
      const size_t d = ComponentDistance(wanted[i], real[i]);
      if (d == 0) continue;
      distance += d;
      corrected[i] = real[i];
    }
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = Nearest{path, Join(corrected, ".")};
  }
  // Half of the letters wrong is another path, not a typo.
  if (best && best_distance * 2 > pattern.size()) return std::nullopt;
  return best;
}

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// "[gate,up]" as "{gate,up}".
std::string WithBraces(const std::string& pattern) {
  const size_t open = pattern.find('[');
  const size_t close = pattern.find(']', open);
  if (close == std::string::npos || pattern.substr(open, close - open).find(',') == std::string::npos) return pattern;
  std::string out = pattern;
  out[open] = '{';
  out[close] = '}';
  return out;
}

// "(0|1)" as "{0,1}".
std::string WithBracesForGroups(const std::string& pattern) {
  std::string out = Replaced(pattern, "(?:", "(");
  const size_t bar = out.find('|');
  const size_t open = out.rfind('(', bar);
  const size_t close = out.find(')', bar);
  if (bar == std::string::npos || open == std::string::npos || close == std::string::npos) return pattern;
  out[open] = '{';
  out[close] = '}';
  for (size_t i = open; i < close; ++i) out[i] = out[i] == '|' ? ',' : out[i];
  return out;
}

// Lua's "%d+" as "*".
std::string WithStarsForLua(const std::string& pattern) {
  std::string out = Replaced(pattern, "%.", ".");
  for (const char* word : {"%d+", "%d*", "%d", "%w+", "%a+"}) out = Replaced(out, word, "*");
  return out;
}

// Every * that is a component of its own as **.
std::string WithLongStars(const std::string& pattern) {
  std::vector<std::string> components = Split(pattern, '.');
  for (std::string& component : components) component = component == "*" ? "**" : component;
  return Join(components, ".");
}

// The pattern with the components that real paths have before it: "layers.*" -> "model.layers.*".
std::string WithPrefix(const std::vector<std::string>& paths, const std::string& pattern) {
  const std::vector<std::string> found = Matching(paths, "**." + pattern);
  const size_t components = Split(pattern, '.').size();
  if (found.empty() || pattern.find("**") != std::string::npos) return pattern;
  std::vector<std::string> prefix = Split(found.front(), '.');
  if (prefix.size() <= components) return pattern;
  prefix.resize(prefix.size() - components);
  for (std::string& component : prefix) component = IsNumberText(component) ? "*" : component;
  return Join(prefix, ".") + "." + pattern;
}

// The modules inside what a pattern without its prefix names: "model.layers.*.**" for "layers.*", where layers own no
// parameters, so that headers do not list them. The pattern itself if there are none.
std::string ModulesBelow(const std::vector<std::string>& paths, const std::string& pattern) {
  if (pattern.find("**") != std::string::npos) return pattern;
  const std::vector<std::string> found = Matching(paths, "**." + pattern + ".**");
  if (found.empty()) return pattern;
  const std::vector<std::string> components = Split(found.front(), '.');
  for (size_t size = Split(pattern, '.').size() + 1; size < components.size(); ++size) {
    const std::string place = Join({components.begin(), components.begin() + static_cast<std::ptrdiff_t>(size)}, ".");
    if (!Matching({place}, "**." + pattern).empty()) return WithPrefix({place}, pattern) + ".**";
  }
  return pattern;
}

// "layers.*" for "layers.7", to compare with one path of each class.
std::string WithStarsForNumbers(const std::string& pattern) {
  std::vector<std::string> components = Split(pattern, '.');
  for (std::string& component : components) component = IsNumberText(component) ? "*" : component;
  return Join(components, ".");
}

// For a pattern of a module that owns no parameters itself: the modules in it that do; "" if there are none. No single
// pattern for all of them ("**") is suggested: in an MLP some are colwise and some rowwise.
std::string ChildrenOf(const std::vector<std::string>& known, const std::vector<std::string>& all,
                       const std::string& pattern) {
  const std::string as_class = WithStarsForNumbers(pattern);
  if (pattern.find("**") != std::string::npos || !Matching(known, as_class).empty()) return "";
  if (Matching(all, pattern + ".**").empty()) return "";
  const size_t components = Split(pattern, '.').size();
  std::set<std::string> names;
  for (const std::string& path : Matching(known, as_class + ".**")) {
    const std::vector<std::string> parts = Split(path, '.');
    names.insert(Join({parts.begin() + static_cast<std::ptrdiff_t>(components), parts.end()}, "."));
  }
  if (names.empty()) return "";
  const std::vector<std::string> children(names.begin(), names.end());
  return "the module at this path owns no parameters itself; it contains " + JoinFirst(children, kMostChildren) +
         ", as in \"" + pattern + "." + children.front() + "\"";
}

struct Try {
  std::string pattern;
  const char* why;
};

constexpr const char* kWholePath =
    "a regular expression must match the full path, from the first character to the last";

// The first guess at a glob that matches. `known`: one path of each class; `all`: every path, called `noun`.
std::optional<std::string> Guess(const std::string& pattern, const std::vector<std::string>& known,
                                 const std::vector<std::string>& all, const std::string& noun) {
  // In a glob a backslash is literal, and no path has one.
  if (pattern.find('\\') != std::string::npos) {
    return "a backslash is literal in a pattern; write a regular expression as re[[" + pattern + "]]";
  }
  const auto did_you_mean = [&](const std::string& corrected) {
    const size_t count = Matching(all, corrected).size();
    return "did you mean \"" + corrected + "\"? It matches " + std::to_string(count) + " " + noun +
           (count == 1 ? "" : "s");
  };
  const Try tries[] = {
      {Replaced(pattern, "/", "."), "components are separated by dots: "},
      {WithBraces(pattern), "brackets match one character, braces list alternatives: "},
      {Replaced(Replaced(pattern, "[0-9]+", "*"), "[0-9]*", "*"),
       "a pattern is not a regular expression (write one as re[[...]]); * matches one component: "},
      {WithBracesForGroups(pattern), "alternatives are written in braces: "},
      {WithStarsForLua(pattern), "a pattern is not a Lua pattern; * matches one component: "},
      {WithLongStars(pattern), "* matches one component, ** matches any number of components: "},
      {WithPrefix(known, pattern), "a path begins at the model's root: "},
      {ModulesBelow(known, pattern),
       "a path begins at the model's root, and the module at this path owns no parameters: "},
  };
  const std::string within = ChildrenOf(known, all, pattern);
  if (!within.empty()) return within;
  for (const Try& t : tries) {
    if (t.pattern == pattern || Matching(known, WithStarsForNumbers(t.pattern)).empty()) continue;
    if (!Matching(all, t.pattern).empty()) return t.why + did_you_mean(t.pattern);
  }
  const std::optional<Nearest> nearest = NearestPath(known, pattern);
  if (nearest) return "nearest path: " + nearest->path + "; " + did_you_mean(nearest->pattern);
  return std::nullopt;
}

}  // namespace

std::string NearestMatchText(const ModuleTree& tree, const Rule& rule) {
  if (rule.syntax == PatternSyntax::kNumbered) {
    std::string why = WhyNeverFound(rule.pattern);
    if (!why.empty()) return why;
  }
  if (rule.syntax == PatternSyntax::kRegex) return kWholePath;
  const bool parameters = rule.parameter.has_value();
  std::vector<uint32_t> all(tree.modules().size());
  for (uint32_t m = 0; m < all.size(); ++m) all[m] = m;
  const std::vector<std::string> known = PathsFor(tree, parameters, tree.class_representatives());
  if (parameters) {
    const std::vector<std::string> modules =
        Matching(PathsFor(tree, false, tree.class_representatives()), rule.pattern);
    if (!modules.empty()) {
      const std::vector<std::string> owned = Matching(known, rule.pattern + ".*");
      const std::string name = owned.empty() ? "weight" : owned.front().substr(owned.front().rfind('.') + 1);
      return "'" + modules.front() +
             "' is a module: declare a style for the module, such as colwise {} or replicated {}, or a layout for a "
             "parameter: \"" +
             rule.pattern + "." + name + "\"";
    }
  }
  const std::optional<std::string> guess =
      Guess(rule.pattern, known, PathsFor(tree, parameters, all), parameters ? "parameter" : "module");
  if (guess) return *guess;
  std::vector<std::string> tops;
  for (uint32_t m : tree.class_representatives()) {
    const Module& module = tree.modules()[m];
    const bool example = !module.path.empty() && !tree.parameters(module).empty();
    if (example && tops.size() < kMostExamples) tops.push_back(module.path);
  }
  return "modules of the model are, for example: " + Join(tops, ", ");
}

std::string NearestMatchText(const std::vector<std::string_view>& paths, const ModulePattern& pattern) {
  if (pattern.syntax == PatternSyntax::kRegex) return kWholePath;
  std::vector<std::string> known;
  std::vector<std::string> containers;  // of numbered modules, which are what sections mostly name
  std::set<std::string> classes;
  for (const std::string_view path : paths) {
    const std::string path_class = PathClassOf(path);
    if (!classes.insert(path_class).second) continue;
    known.emplace_back(path);
    if (path_class.ends_with(".0") && containers.size() < kMostExamples) {
      containers.push_back(WithStarsForNumbers(path_class));
    }
  }
  const std::optional<std::string> guess = Guess(pattern.pattern, known, {paths.begin(), paths.end()}, "module");
  if (guess) return *guess;
  if (!containers.empty()) return "the model's numbered modules are " + Join(containers, ", ");
  std::erase(known, "");
  if (known.size() > kMostExamples) known.resize(kMostExamples);
  return "modules of the model are, for example: " + Join(known, ", ");
}

}  // namespace moonshard
