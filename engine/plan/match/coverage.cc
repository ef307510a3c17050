// A rule without a match is an error, since the modules that it was meant for would stay replicated without any sign.
// The same holds within a rule: of {q,k,v}_proj with a typo in one name, the pattern itself matches. So every brace
// alternative is a pattern of its own (Pattern::alternatives) and must match something.
// What is not a finding: an optional rule; a rule whose modules an overriding rule claims, since matched_anything is
// recorded before precedence; a rule that only redistributes, on a tree from headers, which lacks modules without
// parameters.
#include "engine/plan/match/coverage.h"

#include <re2/re2.h>

#include <algorithm>
#include <optional>

#include "engine/core/base/join_first.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

constexpr size_t kMostAlternatives = 12;  // named in a message

// Sets seen[i][j]: whether alternative j of rule i matches a module, for the rules `to_check`. An alternative that
// depends on numbers ({0..15} has sixteen) may match a single module, so all of these run as one set over the modules
// until each was seen, normally within the first layers that have them; the others run once per path class. Returns
// false if RE2 ran out of memory.
bool FindAlternatives(const ModuleTree& tree, const std::vector<Pattern>& patterns, const std::vector<bool>& to_check,
                      const std::vector<std::vector<bool>>& numbers_seen, std::vector<std::vector<bool>>& seen) {
  struct Place {
    size_t rule;
    size_t alternative;
  };
  std::vector<Place> places;
  std::vector<std::string> regexes;
  size_t components = 0;
  const std::vector<Module>& modules = tree.modules();
  seen.resize(patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) {
    seen[i].assign(patterns[i].alternatives.size(), false);
    if (to_check[i] && !numbers_seen[i].empty()) seen[i] = numbers_seen[i];
    for (size_t j = 0; to_check[i] && j < patterns[i].alternatives.size(); ++j) {
      if (!numbers_seen[i].empty() && patterns[i].alternatives[j].group == patterns[i].range_group) continue;
      const std::string& regex = patterns[i].alternatives[j].regex;
      if (patterns[i].depends_on_numbers) {
        places.push_back({i, j});
        components = std::max(components, patterns[i].deciding_components);
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
  // By class, of the module before this one: it matched what this one would.
  std::vector<std::optional<std::string_view>> last(tree.class_representatives().size());
  for (size_t m = 0; m < modules.size() && left > 0; ++m) {
    const std::string_view deciding = FirstComponents(modules[m].path, components);
    if (last[modules[m].path_class] == deciding) continue;
    last[modules[m].path_class] = deciding;
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

// A rule that only redistributes or sends tokens may name a module without parameters, which a tree from headers does
// not have.
bool OnlyRedistributions(const Rule& rule) {
  const Style& style = rule.style;
  return !rule.parameter && style.params.empty() && style.vectors.empty() && style.kinds.empty() &&
         (!style.inputs.empty() || !style.outputs.empty() || style.exchange.has_value());
}

// "0, 1, 5..9": numbers that follow each other as a range, others as they are.
std::string Listed(const std::vector<std::string>& texts) {
  const auto number = [](const std::string& text) {
    const bool digits = !text.empty() && text.size() < 10 && (text.size() == 1 || text[0] != '0') &&
                        std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    return digits ? std::stoll(text) : -1;
  };
  std::vector<std::string> out;
  for (size_t i = 0; i < texts.size();) {
    size_t end = i + 1;
    while (end < texts.size() && number(texts[i]) >= 0 && number(texts[end]) == number(texts[end - 1]) + 1) ++end;
    if (end - i > 2) {
      out.push_back(texts[i] + ".." + texts[end - 1]);
    } else {
      out.insert(out.end(), texts.begin() + static_cast<std::ptrdiff_t>(i),
                 texts.begin() + static_cast<std::ptrdiff_t>(end));
    }
    i = end;
  }
  return JoinFirst(out, kMostAlternatives);
}

// One finding for each pair of braces with alternatives that match nothing. The nearest match is searched for a single
// one only: if many are missing, the model is another one, and what it has is the better help. Alternatives are
// grouped by their braces: "{q,k,v,o}_proj of {self,cross}_attn" with a missing "cross" is one message about cross,
// and the other pair is judged by itself, since each alternative is tried with all of the others' still there.
void ReportAlternatives(const MatchedPlan& matched, const Rule& rule,
                        const std::vector<Pattern::Alternative>& alternatives, const std::vector<bool>& seen,
                        Diagnostics& out) {
  for (size_t first = 0; first < alternatives.size();) {
    std::vector<std::string> missing;
    std::vector<std::string> found;
    const int group = alternatives[first].group;
    for (; first < alternatives.size() && alternatives[first].group == group; ++first) {
      const Pattern::Alternative& one = alternatives[first];
      (seen[first] || AnyParameterMatches(matched, one.regex) ? found : missing).push_back(one.text);
    }
    if (missing.empty()) continue;
    const bool one = missing.size() == 1;
    Diagnostic d =
        MakeDiagnostic(Finding::kUnmatchedAlternative,
                       one ? "alternative '" + missing.front() + "' of '" + rule.pattern + "' matches no module"
                           : "alternatives " + Listed(missing) + " of '" + rule.pattern + "' match no module",
                       rule.source);
    d.required = "at least one module for every alternative, or optional = true";
    if (one) {
      Rule alone = rule;
      const size_t open = rule.pattern.find('{');
      const size_t close = rule.pattern.find('}', open);
      // With one pair of braces the pattern can be written with this alternative alone, and its nearest match found.
      if (open != std::string::npos && rule.pattern.find('{', open + 1) == std::string::npos) {
        alone.pattern = rule.pattern.substr(0, open) + missing.front() + rule.pattern.substr(close + 1);
        d.help = NearestMatchText(*matched.tree, alone);
      }
    } else if (!found.empty()) {
      d.help = "alternatives in the same braces that match a module: " + Listed(found);
    }
    out.push_back(std::move(d));
  }
}

}  // namespace

Diagnostics CheckCoverage(const MatchedPlan& matched, const std::vector<Pattern>& patterns,
                          const std::vector<bool>& matched_anything,
                          const std::vector<std::vector<bool>>& numbers_seen) {
  Diagnostics out;
  const ModuleTree& tree = *matched.tree;
  std::vector<bool> to_check(patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) {
    to_check[i] = matched_anything[i] && !matched.plan->rules[i].optional;
  }
  std::vector<std::vector<bool>> seen;
  if (!FindAlternatives(tree, patterns, to_check, numbers_seen, seen)) return {PatternSet::OutOfMemory()};
  for (size_t i = 0; i < patterns.size(); ++i) {
    const Rule& rule = matched.plan->rules[i];
    const bool matched_any = matched_anything[i];
    if (rule.optional) continue;
    if (!matched_any && !tree.complete() && OnlyRedistributions(rule)) {
      Diagnostic d = MakeDiagnostic(Finding::kUnmatchedRule,
                                    "'" + rule.pattern + "' matches no module that owns parameters", rule.source);
      d.severity = Severity::kNote;
      d.help =
          "checkpoint headers do not list modules without parameters; the pattern is matched again on the live model";
      out.push_back(std::move(d));
      continue;
    }
    if (!matched_any) {
      const std::string what = rule.parameter ? "parameter" : "module";
      Diagnostic d = MakeDiagnostic(Finding::kUnmatchedRule, "'" + rule.pattern + "' matches no " + what, rule.source);
      if (rule.lenient) d.severity = Severity::kWarning;
      if (rule.syntax == PatternSyntax::kGlob && patterns[i].regex != rule.pattern) {
        d.declared = "pattern '" + rule.pattern + "', as RE2: " + patterns[i].regex;
      }
      d.required = "at least one " + what + ", or optional = true";
      d.help = NearestMatchText(tree, rule);
      out.push_back(std::move(d));
      continue;
    }
    if (!tree.complete() && OnlyRedistributions(rule)) continue;
    ReportAlternatives(matched, rule, patterns[i].alternatives, seen[i], out);
  }
  return out;
}

}  // namespace moonshard
