#include "engine/plan/match/candidates.h"

#include <re2/re2.h>

#include <algorithm>

#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

// Some of the rules, as one set.
class CandidateSet {
 public:
  CandidateSet(const std::vector<std::string>& regexes, const std::vector<int32_t>& rules, Diagnostics& diagnostics)
      : rules_(rules), set_(PatternSet::Compile(regexes).Collect(diagnostics)) {}

  bool ok() const { return set_.has_value(); }
  // The rules that match; false where RE2 ran out of memory.
  bool Match(std::string_view path, std::vector<int32_t>& found) {
    if (!set_->Match(path, indices_)) return false;
    found.clear();
    for (int index : indices_) found.push_back(rules_[static_cast<size_t>(index)]);
    return true;
  }

 private:
  std::vector<int32_t> rules_;
  std::optional<PatternSet> set_;
  std::vector<int> indices_;
};

}  // namespace

// As Matcher::MatchModules and MatchParameters, without precedence: every path is matched, which takes longer but is
// done once for a page of the REPL and shows what precedence discards. Path classes are not used on purpose: the answer
// is shown for each module, and one simple loop over all of them cannot hide a mistake of the faster way.
Candidates FindCandidates(const Plan& plan, const ModuleTree& tree) {
  Candidates out;
  out.of_module.resize(tree.modules().size());
  std::vector<std::string> regexes;
  std::vector<int32_t> rules;
  std::vector<std::string> all_regexes(plan.rules.size());
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const Rule& rule = plan.rules[i];
    std::optional<Pattern> pattern = TranslatePattern(rule.pattern, rule.syntax, rule.source).Collect(out.diagnostics);
    if (!pattern) continue;
    all_regexes[i] = pattern->regex;
    if (rule.parameter) continue;
    regexes.push_back(pattern->regex);
    rules.push_back(static_cast<int32_t>(i));
  }
  const auto out_of_memory = [&] {
    out.of_module.assign(tree.modules().size(), {});
    out.of_parameter.clear();
    out.diagnostics.push_back(PatternSet::OutOfMemory());
    return out;
  };
  CandidateSet for_modules(regexes, rules, out.diagnostics);
  if (!for_modules.ok()) return out;
  std::vector<bool> matched(plan.rules.size());
  for (size_t m = 0; m < tree.modules().size(); ++m) {
    if (!for_modules.Match(tree.modules()[m].path, out.of_module[m])) return out_of_memory();
    for (int32_t rule : out.of_module[m]) matched[static_cast<size_t>(rule)] = true;
  }
  regexes.clear();
  rules.clear();
  // Rules for parameters: those with a layout, styles of bare parameters, and each other rule that matched no module,
  // whose pattern may be one of parameters.
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const Rule& rule = plan.rules[i];
    if (all_regexes[i].empty() || (!rule.parameter && !rule.style.bare && matched[i])) continue;
    regexes.push_back(all_regexes[i]);
    rules.push_back(static_cast<int32_t>(i));
  }
  if (regexes.empty()) return out;
  CandidateSet for_parameters(regexes, rules, out.diagnostics);
  if (!for_parameters.ok()) return out;
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    for (uint32_t p = 0; p < tree.parameters(tree.modules()[m]).size(); ++p) {
      Candidates::OfParameter entry{{m, p}, {}};
      if (!for_parameters.Match(tree.PathOf({m, p}), entry.rules)) return out_of_memory();
      if (!entry.rules.empty()) out.of_parameter.push_back(std::move(entry));
    }
  }
  return out;
}

// One path against each expression by itself: building the automaton of a set costs more than a plan of single matches.
std::vector<int32_t> RulesMatching(const Plan& plan, std::string_view path) {
  std::vector<int32_t> found;
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const Result<Pattern> pattern = TranslatePattern(plan.rules[i].pattern, plan.rules[i].syntax);
    if (!pattern.ok()) continue;
    RE2::Options options;
    options.set_log_errors(false);
    const RE2 expression(pattern.value().regex, options);
    if (RE2::FullMatch(re2::StringPiece(path.data(), path.size()), expression))
      found.push_back(static_cast<int32_t>(i));
  }
  return found;
}

int32_t WinnerOf(const Plan& plan, const std::vector<int32_t>& candidates) {
  return *std::ranges::min_element(candidates, {},
                                   [&](int32_t rule) { return plan.rules[static_cast<size_t>(rule)].level; });
}

}  // namespace moonshard
