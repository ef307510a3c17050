#include "engine/match/coverage.h"

#include <re2/re2.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "engine/base/text.h"
#include "engine/match/numbered.h"
#include "engine/match/pattern_set.h"

namespace moonshard {
namespace {

// Which brace alternatives of the rules to check match a module: alternatives[i][j] is alternative j of rule i. Those
// that numbers can tell apart are asked together, once per module, until all have been seen; the others once per path
// class. False where RE2 ran out of memory.
bool FindAlternatives(const ModuleTree& tree, const std::vector<Pattern>& patterns, const std::vector<bool>& to_check,
                      std::vector<std::vector<bool>>& seen) {
  struct Place {
    size_t rule;
    size_t alternative;
  };
  std::vector<Place> places;
  std::vector<std::string> regexes;
  const std::vector<Module>& modules = tree.modules();
  seen.resize(patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) {
    seen[i].assign(patterns[i].alternatives.size(), false);
    for (size_t j = 0; to_check[i] && j < patterns[i].alternatives.size(); ++j) {
      const std::string& regex = patterns[i].alternatives[j].regex;
      if (patterns[i].depends_on_numbers) {
        places.push_back({i, j});
        regexes.push_back(regex);
        continue;
      }
      const RE2 re(regex);
      seen[i][j] = std::ranges::any_of(tree.class_representatives(),
                                       [&](uint32_t m) { return RE2::FullMatch(modules[m].path, re); });
    }
  }
  const Result<PatternSet> set = PatternSet::Compile(regexes);
  if (!set.ok()) return false;
  std::vector<int> found;
  size_t left = places.size();
  for (size_t m = 0; m < modules.size() && left > 0; ++m) {
    if (!set.value().Match(modules[m].path, found)) return false;
    for (int index : found) {
      const Place& place = places[static_cast<size_t>(index)];
      if (!seen[place.rule][place.alternative]) --left;
      seen[place.rule][place.alternative] = true;
    }
  }
  return true;
}

bool AnyParameterMatches(const MatchedPlan& matched, const std::string& regex) {
  const RE2 re(regex);
  return std::ranges::any_of(matched.parameter_rules, [&](const MatchedPlan::ParameterRule& p) {
    return RE2::FullMatch(matched.tree->PathOf(p.parameter), re);
  });
}

size_t CountMatches(const ModuleTree& tree, const std::string& regex) {
  const RE2 re(regex);
  return static_cast<size_t>(
      std::ranges::count_if(tree.modules(), [&](const Module& m) { return RE2::FullMatch(m.path, re); }));
}

// How far one component of a pattern is from a real one; 0 where it matches.
size_t ComponentDistance(const std::string& component, const std::string& real) {
  const Result<Pattern> pattern = TranslatePattern(component, PatternSyntax::kGlob);
  if (!pattern.ok()) return EditDistance(component, real);
  if (RE2::FullMatch(real, RE2(pattern.value().regex))) return 0;
  return std::max<size_t>(1, EditDistance(component, real));
}

struct Nearest {
  std::string path;     // a real path
  std::string pattern;  // the pattern with the wrong components replaced
  size_t wrong = 0;     // how many were
};

// The real path nearest to a glob of the same number of components, if any is near enough to be what was meant.
std::optional<Nearest> NearestPath(const ModuleTree& tree, const std::string& pattern) {
  const std::vector<std::string> wanted = Split(pattern, '.');
  std::optional<Nearest> best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (uint32_t representative : tree.class_representatives()) {
    const std::string& path = tree.modules()[representative].path;
    const std::vector<std::string> real = Split(path, '.');
    if (real.size() != wanted.size()) continue;
    Nearest candidate{path, "", 0};
    std::vector<std::string> mended = wanted;
    size_t distance = 0;
    for (size_t i = 0; i < real.size(); ++i) {
      const size_t d = ComponentDistance(wanted[i], real[i]);
      if (d == 0) continue;
      distance += d;
      ++candidate.wrong;
      mended[i] = real[i];
    }
    if (distance >= best_distance) continue;
    best_distance = distance;
    candidate.pattern = Join(mended, ".");
    best = std::move(candidate);
  }
  // Half of the letters wrong is another path, not a typo.
  if (best && best_distance * 2 > pattern.size()) return std::nullopt;
  return best;
}

std::string HelpFor(const ModuleTree& tree, const Rule& rule) {
  if (rule.syntax == PatternSyntax::kNumbered) {
    std::string why = WhyNeverFound(rule.pattern);
    if (!why.empty()) return why;
  }
  if (rule.syntax == PatternSyntax::kRegex)
    return "an expression must match the whole path, from the first letter to the last";
  const std::optional<Nearest> nearest = NearestPath(tree, rule.pattern);
  if (!nearest) {
    std::vector<std::string> tops;
    for (uint32_t m : tree.class_representatives()) {
      const Module& module = tree.modules()[m];
      if (tops.size() < 6 && !tree.parameters(module).empty()) tops.push_back(module.path);
    }
    return "the model has, for example: " + Join(tops, ", ");
  }
  const Result<Pattern> mended = TranslatePattern(nearest->pattern, PatternSyntax::kGlob);
  const size_t count = mended.ok() ? CountMatches(tree, mended.value().regex) : 0;
  return "nearest path: " + nearest->path + "; did you mean \"" + nearest->pattern + "\"? It matches " +
         std::to_string(count) + (count == 1 ? " module" : " modules");
}

// A rule that only moves tensors may be about a module without parameters, which a tree from headers does not know.
bool OnlyMoves(const Rule& rule) {
  const Style& style = rule.style;
  return !rule.parameter && style.params.empty() && style.vectors.empty() && style.kinds.empty() &&
         (!style.inputs.empty() || !style.outputs.empty());
}

}  // namespace

Diagnostics CheckCoverage(const MatchedPlan& matched, const std::vector<Pattern>& patterns,
                          const std::vector<bool>& matched_anything) {
  Diagnostics out;
  const ModuleTree& tree = *matched.tree;
  std::vector<bool> to_check(patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) {
    to_check[i] = matched_anything[i] && !matched.plan->rules[i].optional;
  }
  std::vector<std::vector<bool>> seen;
  if (!FindAlternatives(tree, patterns, to_check, seen)) return {PatternSet::OutOfMemory()};
  for (size_t i = 0; i < patterns.size(); ++i) {
    const Rule& rule = matched.plan->rules[i];
    const bool matched_any = matched_anything[i];
    if (rule.optional) continue;
    if (!matched_any && !tree.complete() && OnlyMoves(rule)) {
      Diagnostic d = MakeDiagnostic(Finding::kUnmatchedRule,
                                    "'" + rule.pattern + "' matches no module that owns parameters", rule.source);
      d.severity = Severity::kNote;
      d.help = "whether the model has such a module, its headers do not tell: it is looked for in the live model";
      out.push_back(std::move(d));
      continue;
    }
    if (!matched_any) {
      Diagnostic d = MakeDiagnostic(Finding::kUnmatchedRule, "'" + rule.pattern + "' matches no module", rule.source);
      if (rule.lenient) d.severity = Severity::kWarning;
      if (rule.syntax == PatternSyntax::kGlob && patterns[i].regex != rule.pattern) {
        d.declared = "pattern '" + rule.pattern + "', as RE2: " + patterns[i].regex;
      }
      d.required = "at least one module, or optional = true";
      d.help = HelpFor(tree, rule);
      out.push_back(std::move(d));
      continue;
    }
    if (!tree.complete() && OnlyMoves(rule)) continue;
    for (size_t j = 0; j < patterns[i].alternatives.size(); ++j) {
      const Pattern::Alternative& alternative = patterns[i].alternatives[j];
      if (seen[i][j] || AnyParameterMatches(matched, alternative.regex)) continue;
      Diagnostic d = MakeDiagnostic(
          Finding::kUnmatchedAlternative,
          "alternative '" + alternative.text + "' of '" + rule.pattern + "' matches no module", rule.source);
      d.required = "at least one module for every alternative, or optional = true";
      Rule alone = rule;
      const size_t open = rule.pattern.find('{');
      const size_t close = rule.pattern.find('}', open);
      // With one pair of braces the pattern can be written with this alternative alone, and its nearest path found.
      if (open != std::string::npos && rule.pattern.find('{', open + 1) == std::string::npos) {
        alone.pattern = rule.pattern.substr(0, open) + alternative.text + rule.pattern.substr(close + 1);
        d.help = HelpFor(tree, alone);
      }
      out.push_back(std::move(d));
    }
  }
  return out;
}

}  // namespace moonshard
