// From rules over patterns to one rule for each module. The product of the stage is two tables: the rule of every
// module, and rules of single parameters, which win over the rule of their module. Everything else in here is about
// errors: a plan whose patterns match too little leaves modules replicated, which trains and is slow; one that matches
// too much shards what must not be. Neither fails by itself, so both are findings.
//
// Example. A model with 32 layers has some 400 modules in about 15 path classes:
//
//   rule                                    depends on numbers    matched against
//   model.layers.*.mlp.{gate,up}_proj       no                    15 representatives, one per class
//   model.layers.{0..3}.self_attn           yes                   all 400 paths
//   model.layers.31.mlp.down_proj           yes                   all 400 paths
//
// Cost: with C classes, M modules and paths of P bytes, O(C P) for the rules that a plan usually has and O(M P) for
// those with numbers, whatever the number of rules, since a set is one automaton (pattern_set.cc).
#include "engine/plan/match/match.h"

#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/plan/match/coverage.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

// A set of patterns and, for each, the rule it belongs to.
struct RuleSet {
  std::vector<std::string> regexes;
  std::vector<int32_t> rules;
};

// The passes, in order, each over what the one before left:
//   Translate        patterns to RE2; bad ones end the stage, so that no finding follows from another
//   MatchModules     rules against module paths; precedence, conflicts
//   MatchParameters  rules against parameter paths: those made for parameters, and those that matched no module
//   MatchSections    patterns of fsdp, recompute and keep_dtype against module paths
//   CheckCoverage    rules and brace alternatives without a match
//
// Matching is the cost of the stage: a large mixture of experts has 60,000 modules. Their paths fall into few path
// classes (paths that differ in numbers only), and most patterns match a class or not, whatever the numbers. So
// patterns are split into two sets: those independent of numbers run once per class, the others once per module.
class Matcher {
 public:
  Matcher(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree) {
    matched_.plan = std::move(plan);
    matched_.tree = std::move(tree);
  }

  Result<MatchedPlan> Run(std::optional<MatchedPlan>* incomplete) {
    const Plan& plan = *matched_.plan;
    matched_.matches.assign(plan.rules.size(), 0);
    matched_.rule_of.assign(matched_.tree->modules().size(), MatchedPlan::kNoRule);
    matched_anything_.assign(plan.rules.size(), false);
    numbers_seen_.resize(plan.rules.size());
    if (!Translate() || !MatchModules() || !MatchParameters()) return std::move(diagnostics_);
    MatchSections();
    const Diagnostics coverage = CheckCoverage(matched_, patterns_, matched_anything_, numbers_seen_);
    diagnostics_.insert(diagnostics_.end(), coverage.begin(), coverage.end());
    if (!HasErrors(diagnostics_)) return Result<MatchedPlan>(std::move(matched_), std::move(diagnostics_));
    const bool known = std::ranges::all_of(diagnostics_, [](const Diagnostic& d) {
      return d.severity != Severity::kError || d.finding == Finding::kUnmatchedRule ||
             d.finding == Finding::kUnmatchedAlternative;
    });
    if (known && incomplete != nullptr) *incomplete = std::move(matched_);
    return std::move(diagnostics_);
  }

 private:
  bool Translate() {
    for (const Rule& rule : matched_.plan->rules) {
      std::optional<Pattern> pattern = TranslatePattern(rule.pattern, rule.syntax, rule.source).Collect(diagnostics_);
      patterns_.push_back(pattern ? std::move(*pattern) : Pattern{});
    }
    return !HasErrors(diagnostics_);
  }

  template <class Choose>
  RuleSet Rules(Choose choose) const {
    RuleSet out;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (!choose(i)) continue;
      out.regexes.push_back(patterns_[i].regex);
      out.rules.push_back(static_cast<int32_t>(i));
    }
    return out;
  }

  bool Match(const PatternSet& set, const RuleSet& rules, std::string_view path, std::vector<int32_t>& found) {
    if (!set.Match(path, indices_)) {
      diagnostics_.push_back(PatternSet::OutOfMemory());
      return false;
    }
    found.clear();
    for (int index : indices_) found.push_back(rules.rules[static_cast<size_t>(index)]);
    return true;
  }

  // Two automata, and two lists of rules for a module: those that match its path class, computed once per class, and
  // those that match its own path. Both together are its candidates. Without rules that depend on numbers, the usual
  // case, a module costs one lookup of its class and no matching at all. The candidates are sorted, so that who wins
  // and what is reported first does not depend on which of the automata found a rule.
  bool MatchModules() {
    const std::vector<Rule>& rules = matched_.plan->rules;
    const ModuleTree& tree = *matched_.tree;
    const RuleSet by_class = Rules([&](size_t i) { return !rules[i].parameter && !patterns_[i].depends_on_numbers; });
    const RuleSet by_path = Rules([&](size_t i) { return !rules[i].parameter && patterns_[i].depends_on_numbers; });
    std::optional<PatternSet> class_set = PatternSet::Compile(by_class.regexes).Collect(diagnostics_);
    std::optional<PatternSet> path_set = PatternSet::Compile(by_path.regexes).Collect(diagnostics_);
    if (!class_set || !path_set) return false;

    const std::vector<Module>& modules = tree.modules();
    std::vector<std::vector<int32_t>> of_class(tree.class_representatives().size());
    for (size_t c = 0; c < of_class.size(); ++c) {
      if (!Match(*class_set, by_class, modules[tree.class_representatives()[c]].path, of_class[c])) return false;
    }
    if (by_path.rules.empty()) {
      for (size_t m = 0; m < modules.size(); ++m) {
        const std::vector<int32_t>& from_class = of_class[modules[m].path_class];
        if (!from_class.empty()) Claim(m, from_class);
      }
      return true;
    }
    // Of a class the module before this one, which usually differs in numbers that decide nothing (the expert, not the
    // layer).
    struct Last {
      std::string_view deciding;
      std::vector<int32_t> found;
      bool known = false;
    };
    size_t components = 0;
    for (int32_t rule : by_path.rules)
      components = std::max(components, patterns_[static_cast<size_t>(rule)].deciding_components);
    std::vector<Last> last_of_class(of_class.size());
    for (size_t m = 0; m < modules.size(); ++m) {
      Last& last = last_of_class[modules[m].path_class];
      const std::string& path = modules[m].path;
      if (!last.known || !BeginsWith(path, last.deciding)) {
        if (!Match(*path_set, by_path, path, last.found)) return false;
        for (int32_t rule : last.found) NoteNumber(static_cast<size_t>(rule), path);
        const std::vector<int32_t>& from_class = of_class[modules[m].path_class];
        last.found.insert(last.found.end(), from_class.begin(), from_class.end());
        std::ranges::sort(last.found);
        last.deciding = FirstComponents(path, components);
        last.known = true;
      }
      if (!last.found.empty()) Claim(m, last.found);
    }
    return true;
  }

  // Whether the first components of a path, as many as `components` has, are these.
  static bool BeginsWith(std::string_view path, std::string_view components) {
    return path.starts_with(components) && (path.size() == components.size() || path[components.size()] == '.');
  }

  // Which number of a range a path that matches has: the alternatives of the range need no matching of their own.
  void NoteNumber(size_t rule, std::string_view path) {
    const Pattern& pattern = patterns_[rule];
    if (pattern.range_component == 0) return;
    const std::string_view until = FirstComponents(path, pattern.range_component);
    const std::string_view text = until.substr(until.rfind('.') + 1);  // npos + 1 is 0
    int64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    const auto first = std::ranges::find(pattern.alternatives, pattern.range_group, &Pattern::Alternative::group);
    const int64_t index = first - pattern.alternatives.begin() + number - std::stoll(first->text);
    numbers_seen_[rule].resize(pattern.alternatives.size());
    if (index >= 0 && index < std::ssize(numbers_seen_[rule])) numbers_seen_[rule][static_cast<size_t>(index)] = true;
  }

  // The rule that wins among `candidates` (ascending): the first of the lowest level. Another rule of that level is a
  // conflict, not a tie to be broken: the order of lines does not show what the author meant, and precedence by
  // specificity would let an edit of one pattern change the owner of modules that neither line names. A rule is more
  // specific by being in the plan that extends another.
  int32_t Winner(const std::vector<int32_t>& candidates, const std::string& path) {
    const std::vector<Rule>& rules = matched_.plan->rules;
    int32_t winner = candidates.front();
    for (int32_t rule : candidates) {
      matched_anything_[static_cast<size_t>(rule)] = true;
      if (rules[static_cast<size_t>(rule)].level < rules[static_cast<size_t>(winner)].level) winner = rule;
    }
    for (int32_t rule : candidates) {
      if (rule == winner || rules[static_cast<size_t>(rule)].level != rules[static_cast<size_t>(winner)].level)
        continue;
      Conflict(std::min(winner, rule), std::max(winner, rule), path);
    }
    return winner;
  }

  void Conflict(int32_t first, int32_t second, const std::string& path) {
    const auto [known, fresh] = conflicts_.try_emplace({first, second}, diagnostics_.size());
    if (!fresh) return;  // one conflict per pair of rules, with the first module as the example
    if (conflicts_.size() > kMostConflicts) return;
    const Rule& a = matched_.plan->rules[static_cast<size_t>(first)];
    const Rule& b = matched_.plan->rules[static_cast<size_t>(second)];
    Diagnostic d = MakeDiagnostic(Finding::kRuleConflict, "two rules claim '" + path + "'", b.source);
    d.path = path;
    d.declared = "'" + a.pattern + "' (" + a.style.name + ") and '" + b.pattern + "' (" + b.style.name + ")";
    d.required = "at most one rule for each module";
    d.help = "make one pattern narrower, or put the general rule into a plan that this plan extends";
    d.related.push_back(a.source);
    diagnostics_.push_back(std::move(d));
  }

  void Claim(size_t module, const std::vector<int32_t>& candidates) {
    const int32_t winner =
        candidates.size() == 1 ? candidates.front() : Winner(candidates, matched_.tree->modules()[module].path);
    matched_.rule_of[module] = winner;
    ++matched_.matches[static_cast<size_t>(winner)];
    matched_anything_[static_cast<size_t>(winner)] = true;
  }

  // Rules for parameters, rules whose style may be given to a parameter, and rules that matched no module, against full
  // parameter paths. Such rules are few, so every path is matched, not one of each class. A rule without a module is
  // tried because its pattern may name a parameter, as at("lm_head.weight", colwise {}) does: "the module takes the
  // style", which compile reports then, helps more than "matches nothing". This pass comes second for that reason, and
  // a rule that claimed modules is not tried again: it would claim parameters that its author did not mean.
  bool MatchParameters() {
    const std::vector<Rule>& rules = matched_.plan->rules;
    const RuleSet set_rules =
        Rules([&](size_t i) { return rules[i].parameter || rules[i].style.bare || !matched_anything_[i]; });
    if (set_rules.rules.empty()) return true;
    std::optional<PatternSet> set = PatternSet::Compile(set_rules.regexes).Collect(diagnostics_);
    if (!set) return false;
    const ModuleTree& tree = *matched_.tree;
    std::vector<int32_t> found;
    for (uint32_t m = 0; m < tree.modules().size(); ++m) {
      for (uint32_t p = 0; p < tree.parameters(tree.modules()[m]).size(); ++p) {
        const std::string path = tree.PathOf({m, p});
        if (!Match(*set, set_rules, path, found)) return false;
        if (found.empty()) continue;
        const int32_t winner = Winner(found, path);
        matched_.parameter_rules.push_back({{m, p}, winner});
        ++matched_.matches[static_cast<size_t>(winner)];
      }
    }
    return true;
  }

  // Sections match by single expressions: a plan has a few of them, and each is needed by itself, for its own finding.
  void MatchSections() {
    const Plan& plan = *matched_.plan;
    if (!plan.data_parallel && plan.recompute.empty() && plan.kept_dtypes.empty() && plan.adapters.empty()) return;
    const std::vector<std::string_view> paths = PathsAndParents();
    if (plan.data_parallel) {
      matched_.units = MatchSection(plan.data_parallel->wrap, "fsdp wraps", paths);
      matched_.ignored = MatchSection(plan.data_parallel->ignored, "fsdp ignores", paths);
    }
    std::vector<std::vector<std::string>> found;
    for (const Recomputed& section : plan.recompute) {
      found.push_back(MatchSection(section.modules, "recompute lists", paths));
      const std::vector<std::string> kept = MatchSection(section.keep_modules, "recompute keeps", paths);
      matched_.kept_results.insert(matched_.kept_results.end(), kept.begin(), kept.end());
    }
    matched_.recomputed = FirstSections(found);
    SortOnce(matched_.kept_results);
    found.clear();
    for (const KeptDType& kept : plan.kept_dtypes) {
      found.push_back(MatchSection({kept.modules}, "keep_dtype names", paths));
    }
    matched_.kept_dtypes = FirstSections(found);
    MatchAdapters(paths);
  }

  // Every section adapts a module, also in a lenient plan: a model whose adapters are all absent would be frozen as a
  // whole.
  void MatchAdapters(const std::vector<std::string_view>& paths) {
    const std::vector<Adapter>& adapters = matched_.plan->adapters;
    std::map<std::pair<std::string, std::string>, int32_t> first;  // by path and name
    for (size_t i = 0; i < adapters.size(); ++i) {
      std::set<int32_t> others;  // sections of the adapter that apply to modules of this one
      bool applies = false;
      if (adapters[i].modules.empty()) {
        diagnostics_.push_back(
            MakeDiagnostic(Finding::kUnmatchedRule, "'at' of lora has no pattern", adapters[i].source));
        diagnostics_.back().required = "at least one module, or no lora section";
      }
      for (const std::string& path : MatchSection(adapters[i].modules, "lora adapts", paths, /*may_be_absent=*/false)) {
        const auto [entry, fresh] = first.try_emplace({path, adapters[i].name}, static_cast<int32_t>(i));
        if (fresh) applies = true;
        if (!fresh) others.insert(entry->second);
      }
      if (!applies && !others.empty()) WarnOfShadowed(adapters, i, others);
    }
    for (const auto& [key, section] : first) matched_.adapted.push_back({key.first, section});
  }

  void WarnOfShadowed(const std::vector<Adapter>& adapters, size_t section, const std::set<int32_t>& others) {
    const Adapter& adapter = adapters[section];
    Diagnostic d = MakeDiagnostic(
        Finding::kUnmatchedRule,
        "lora applies to no module: earlier sections of adapter '" + adapter.name + "' name all of its modules",
        adapter.source);
    d.severity = Severity::kWarning;
    d.declared = ToText(adapter);
    d.help = "remove the section, put it before the others, or give it another name";
    for (const int32_t other : others) {
      const SourceSpan& source = adapters[static_cast<size_t>(other)].source;
      if (source.known()) d.related.push_back(source);
    }
    diagnostics_.push_back(std::move(d));
  }

  static void SortOnce(std::vector<std::string>& paths) {
    std::ranges::sort(paths);
    paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  }

  // A module that several sections of a kind name belongs to the first of them. This is no conflict as with rules:
  // sections of one kind do the same thing with different settings, and the author orders them.
  static std::vector<MatchedPlan::OfSection> FirstSections(const std::vector<std::vector<std::string>>& found) {
    std::map<std::string, int32_t> first;
    for (size_t i = 0; i < found.size(); ++i) {
      for (const std::string& path : found[i]) first.try_emplace(path, static_cast<int32_t>(i));
    }
    std::vector<MatchedPlan::OfSection> out;
    for (const auto& [path, section] : first) out.push_back({path, section});
    return out;
  }

  // The paths that any of the patterns matches, sorted. `what`: for messages, "fsdp wraps".
  std::vector<std::string> MatchSection(const std::vector<ModulePattern>& patterns, const std::string& what,
                                        const std::vector<std::string_view>& paths) {
    return MatchSection(patterns, what, paths, matched_.plan->lenient);
  }

  std::vector<std::string> MatchSection(const std::vector<ModulePattern>& patterns, const std::string& what,
                                        const std::vector<std::string_view>& paths, bool may_be_absent) {
    std::vector<std::string> found;
    for (const ModulePattern& module : patterns) {
      const auto pattern = TranslatePattern(module.pattern, module.syntax, module.source).Collect(diagnostics_);
      if (!pattern) continue;
      const RE2 regex(pattern->regex, RE2::Quiet);
      const size_t before = found.size();
      for (std::string_view path : paths) {
        if (RE2::FullMatch(re2::StringPiece(path.data(), path.size()), regex)) found.emplace_back(path);
      }
      if (found.size() > before || may_be_absent) continue;
      Diagnostic d = MakeDiagnostic(Finding::kUnmatchedRule,
                                    "'" + module.pattern + "', which " + what + ", matches no module", module.source);
      if (module.syntax == PatternSyntax::kGlob && pattern->regex != module.pattern) {
        d.declared = "pattern '" + module.pattern + "', as RE2: " + pattern->regex;
      }
      d.help = NearestMatchText(paths, module);
      diagnostics_.push_back(std::move(d));
    }
    SortOnce(found);
    return found;
  }

  // The paths of all modules and, for a tree from headers, of the modules around them; each once, sorted. The tree
  // lacks modules without parameters, and sections mostly name such (a layer).
  std::vector<std::string_view> PathsAndParents() const {
    std::set<std::string_view> paths;
    for (const Module& module : matched_.tree->modules()) {
      std::string_view path = module.path;
      while (paths.insert(path).second && !matched_.tree->complete() && !path.empty()) path = ParentOf(path);
    }
    return {paths.begin(), paths.end()};
  }

  static constexpr size_t kMostConflicts = 100;  // reported; pairs grow with the square of the rules

  MatchedPlan matched_;
  Diagnostics diagnostics_;
  std::vector<Pattern> patterns_;
  std::vector<bool> matched_anything_;
  std::vector<std::vector<bool>> numbers_seen_;  // by rule and alternative, of patterns with a range_component
  std::map<std::pair<int32_t, int32_t>, size_t> conflicts_;
  std::vector<int> indices_;
};

}  // namespace

// parameter_rules is in the order of the tree, hence sorted by ParamRef: a binary search and no map.
int32_t MatchedPlan::ParameterRuleOf(ParamRef parameter) const {
  const auto found = std::ranges::lower_bound(parameter_rules, parameter, {}, &ParameterRule::parameter);
  return found != parameter_rules.end() && found->parameter == parameter ? found->rule : kNoRule;
}

std::string MatchedPlan::ToText() const {
  std::string out;
  const auto rule_text = [&](int32_t rule) {
    if (rule == kNoRule) return std::string(" <- no rule");
    const Rule& r = plan->rules[static_cast<size_t>(rule)];
    return " <- rule " + std::to_string(rule) + " (" + Visible(r.pattern) + ")";
  };
  for (size_t m = 0; m < tree->modules().size(); ++m) {
    const Module& module = tree->modules()[m];
    if (rule_of[m] == kNoRule && tree->parameters(module).empty()) continue;
    out += (module.path.empty() ? "(root)" : Visible(module.path)) + rule_text(rule_of[m]) + "\n";
  }
  for (const ParameterRule& p : parameter_rules) out += Visible(tree->PathOf(p.parameter)) + rule_text(p.rule) + "\n";
  return out;
}

Result<MatchedPlan> MatchRules(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree,
                               std::optional<MatchedPlan>* incomplete) {
  Check(plan && tree, "MatchRules needs a plan and a tree");
  return Matcher(std::move(plan), std::move(tree)).Run(incomplete);
}

Result<std::vector<std::string>> FindModules(const ModuleTree& tree, std::string_view pattern, PatternSyntax syntax) {
  Result<Pattern> translated = TranslatePattern(pattern, syntax);
  if (!translated.ok()) return translated.diagnostics();
  const RE2 regex(translated.value().regex);
  std::vector<std::string> paths;
  for (const Module& module : tree.modules()) {
    if (RE2::FullMatch(module.path, regex)) paths.push_back(module.path);
  }
  return paths;
}

}  // namespace moonshard
