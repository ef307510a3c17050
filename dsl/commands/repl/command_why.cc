// :why.
#include <re2/re2.h>

#include <algorithm>

#include "dsl/commands/repl/command.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/explain/texts.h"
#include "engine/plan/match/candidates.h"
#include "engine/plan/match/coverage.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

// A module, and one or all of its parameters.
struct Target {
  uint32_t module = 0;
  std::optional<uint32_t> param;
  int64_t others = 0;  // further modules that a pattern matched
};

std::optional<Target> FindTarget(const ModuleTree& tree, const std::string& text) {
  const std::string path = text == "(root)" ? "" : ReadPattern(text).text;
  if (const int64_t module = tree.Find(path); module >= 0) return Target{static_cast<uint32_t>(module), {}, 0};
  if (ParamRef found; tree.FindParameter(path, &found)) return Target{found.module, found.param, 0};
  const TypedPattern typed = ReadPattern(text);
  const Result<Pattern> pattern = TranslatePattern(typed.text, typed.syntax);
  if (!pattern.ok()) return std::nullopt;
  const RE2 expression(pattern.value().regex);
  std::optional<Target> out;
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    if (!RE2::FullMatch(tree.modules()[m].path, expression)) continue;
    if (out) {
      ++out->others;
    } else {
      out = Target{m, {}, 0};
    }
  }
  return out;
}

std::string RuleNumber(int32_t rule) { return "rule " + std::to_string(rule); }

std::string RegexOf(const Rule& rule) {
  const Result<Pattern> pattern = TranslatePattern(rule.pattern, rule.syntax);
  return pattern.ok() ? pattern.value().regex : "";
}

// Every rule whose pattern matches one of the paths, and what became of it. Without winners the plan has errors,
// perhaps a conflict here, so the verdicts are computed from the levels alone: rules of the lowest level are in
// conflict if there are several, and others lose to them.
Table RulesTable(const Plan& plan, const std::vector<std::string>& paths, const std::vector<int32_t>& winners) {
  Table table("rules", {"rule", "pattern", "style", "source", "RE2", "verdict"});
  std::vector<int32_t> rules;
  for (const std::string& path : paths) {
    for (int32_t rule : RulesMatching(plan, path)) rules.push_back(rule);
  }
  std::ranges::sort(rules);
  rules.erase(std::unique(rules.begin(), rules.end()), rules.end());
  int lowest = INT_MAX;
  for (int32_t r : rules) lowest = std::min(lowest, plan.rules[static_cast<size_t>(r)].level);
  const auto at_lowest =
      std::ranges::count_if(rules, [&](int32_t r) { return plan.rules[static_cast<size_t>(r)].level == lowest; });
  for (int32_t r : rules) {
    const Rule& rule = plan.rules[static_cast<size_t>(r)];
    std::string verdict = "applies";
    if (winners.empty()) {
      verdict = rule.level > lowest ? "loses to the extending plan" : at_lowest > 1 ? "in conflict" : "would apply";
    } else if (std::ranges::find(winners, r) == winners.end()) {
      verdict = "loses to the extending plan";
    }
    table.rows.push_back({r, rule.pattern, rule.parameter ? rule.parameter->ToText() : rule.style.name,
                          rule.source.ToString(), RegexOf(rule), verdict});
  }
  return table;
}

// How many modules require the same redistribution of the same argument of one parent: they share its collectives.
int64_t SharersOf(const CompiledPlan& plan, uint32_t module, size_t input) {
  for (const ModuleStep& step : plan.StepsOf(module).enter) {
    if (step.kind == StepKind::kRedistributeInput && step.position == static_cast<int32_t>(input)) return step.uses;
  }
  return 1;
}

Table RedistributionsTable(const CompiledPlan& plan, uint32_t module) {
  const ModuleLayouts& layouts = plan.LayoutsOf(module);
  Table table("redistributions", {"side", "from", "to", "forward", "backward", "shared with"});
  const auto add = [&](const char* side, const std::vector<std::optional<Redistribution>>& redistributions,
                       bool input) {
    for (size_t i = 0; i < redistributions.size(); ++i) {
      if (!redistributions[i]) continue;
      const Redistribution& redistribution = *redistributions[i];
      JsonValue sharers;
      if (input && !MovingAxes(redistribution, plan.mesh).empty()) {
        if (const int64_t count = SharersOf(plan, module, i); count > 1) {
          sharers = std::to_string(count - 1) + (count == 2 ? " sibling" : " siblings");
        }
      }
      table.rows.push_back({std::string(side) + (redistributions.size() > 1 ? " " + std::to_string(i) : ""),
                            redistribution.from.ToText(), redistribution.to.ToText(),
                            CollectiveText(redistribution, plan.mesh, Direction::kForward),
                            CollectiveText(redistribution, plan.mesh, Direction::kBackward,
                                           !input || layouts.HasGradient(static_cast<int64_t>(i))),
                            sharers});
    }
  };
  add("input", layouts.inputs, true);
  add("output", layouts.outputs, false);
  return table;
}

std::string GradientText(const CompiledPlan& plan, const Parameter& parameter, const Placement& placement,
                         int64_t rank) {
  if (parameter.is_buffer) return "buffer";
  std::vector<std::string> sums;
  for (const GradientTerm& term : GradientTermsOf(parameter.shape, placement, plan.mesh, rank)) {
    sums.push_back("summed over " + std::to_string(term.group.ranks) + " ranks of " + ToString(term.group.axes));
  }
  sums.erase(std::unique(sums.begin(), sums.end()), sums.end());
  return Join(sums, ", ");
}

std::string TieText(const ModuleTree& tree, ParamRef param) {
  for (const std::vector<ParamRef>& tie : tree.ties()) {
    if (std::ranges::find(tie, param) == tie.end()) continue;
    std::vector<std::string> others;
    for (ParamRef other : tie) {
      if (other != param) others.push_back(tree.PathOf(other));
    }
    return Join(others, ", ");
  }
  return "";
}

// The unit of fsdp that gathers the target's parameters.
std::string UnitText(const CompiledPlan& plan, const Target& target) {
  for (const ShardedUnit& unit : plan.units) {
    const auto holds = [&](ParamRef ref) {
      return ref.module == target.module && (!target.param || ref.param == *target.param);
    };
    if (!std::ranges::any_of(unit.params, holds)) continue;
    return (unit.path.empty() ? "(root)" : unit.path) + (unit.reshard ? "" : ", full until its backward ends");
  }
  return "";
}

Table ParametersTable(const CompiledPlan& plan, const Target& target, int64_t rank) {
  const ModuleTree& tree = *plan.tree;
  const ModuleLayouts& layouts = plan.LayoutsOf(target.module);
  const ModuleTree::Signature& signature = tree.parameters(tree.modules()[target.module]);
  Table table("parameters",
              {"parameter", "dtype", "shape", "local shape", "layout", "gradient", "added late", "tied to"});
  for (uint32_t p = 0; p < signature.size(); ++p) {
    if (target.param && *target.param != p) continue;
    const Parameter& parameter = signature[p];
    const bool late = std::ranges::find(layouts.after, parameter.name) != layouts.after.end();
    table.rows.push_back({parameter.name, ToString(parameter.dtype), ShapeToString(parameter.shape),
                          ShapeToString(LocalShape(parameter.shape, layouts.params[p], plan.mesh, rank)),
                          layouts.params[p].ToText(), GradientText(plan, parameter, layouts.params[p], rank),
                          late ? JsonValue("after the redistribution of the output") : JsonValue(),
                          TieText(tree, {target.module, p})});
  }
  // Empty columns are omitted.
  for (size_t c = table.columns.size(); c-- > 5;) {
    const bool silent =
        std::ranges::all_of(table.rows, [&](const auto& row) { return row[c].is_null() || row[c] == JsonValue(""); });
    if (!silent) continue;
    table.columns.erase(table.columns.begin() + static_cast<std::ptrdiff_t>(c));
    for (auto& row : table.rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
  }
  return table;
}

}  // namespace

Answer RunWhy(CommandCall& call) {
  if (std::optional<Answer> refused = NeedPlan(call)) return *refused;
  if (call.arguments.empty()) return Refused(call, ":why takes the path of a module or a parameter");
  const ModuleTree& tree = *call.workspace.model()->tree;
  const std::optional<Target> target = FindTarget(tree, call.arguments);
  if (!target) {
    const PathIndex& paths = call.workspace.model()->paths;
    const std::string asked = ReadPattern(call.arguments).text;
    if (!paths.Complete(asked + ".", 1).empty()) {
      return Refused(call, "'" + asked + "' owns no parameters, and headers list only modules with parameters",
                     ":tree " + asked + " shows the modules below it");
    }
    const std::string nearest = paths.Nearest(asked);
    Rule meant;
    meant.pattern = asked;
    return Refused(call, "the model has no module or parameter '" + asked + "'",
                   nearest.empty() ? NearestMatchText(tree, meant) : "nearest path: " + nearest);
  }
  const Plan& plan = *call.workspace.plan();
  const Module& module = tree.modules()[target->module];
  std::vector<std::string> paths = {module.path};
  for (uint32_t p = 0; p < tree.parameters(module).size(); ++p) {
    if (!target->param || *target->param == p) paths.push_back(tree.PathOf({target->module, p}));
  }
  std::vector<std::pair<std::string, JsonValue>> facts = {
      {"path", target->param         ? tree.PathOf({target->module, *target->param})
               : module.path.empty() ? "(root)"
                                     : module.path},
      {"kind", module.kind}};
  Answer out;
  if (target->others > 0) {
    out.notes.push_back("this is the first of " + std::to_string(target->others + 1) + " modules that match '" +
                        call.arguments + "'");
  }
  const CompiledPlan* compiled = call.workspace.compiled();
  if (compiled == nullptr) {
    out.notes.emplace_back("the plan has errors: only its rules are shown");
    out.tables = {Table::Facts("module", facts), RulesTable(plan, paths, {})};
    if (out.tables.back().rows.empty()) out.notes.emplace_back("no rule matches the module");
    return out;
  }
  const ModuleLayouts& layouts = compiled->LayoutsOf(target->module);
  std::vector<int32_t> winners;
  const MatchedPlan& matched = *call.workspace.resolution().matched;
  if (const int32_t rule = matched.rule_of[target->module]; rule != MatchedPlan::kNoRule) winners.push_back(rule);
  for (uint32_t p = 0; p < tree.parameters(module).size(); ++p) {
    const int32_t rule = matched.ParameterRuleOf({target->module, p});
    if (rule != MatchedPlan::kNoRule && (!target->param || *target->param == p)) winners.push_back(rule);
  }
  facts.emplace_back("style", layouts.style.empty() ? "-" : layouts.style);
  facts.emplace_back("rule", winners.empty() ? RuleText(*compiled, layouts)
                                             : RuleNumber(winners.front()) + ", " +
                                                   plan.rules[static_cast<size_t>(winners.front())].source.ToString());
  if (!winners.empty()) {
    std::string line = plan.rules[static_cast<size_t>(winners.front())].source.text;
    line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
    facts.emplace_back("line", line);
  }
  if (layouts.lookup == Lookup::kMasked) facts.emplace_back("lookup", "ids whose row is on another rank give zeros");
  if (layouts.route) facts.emplace_back("route", ToText(*layouts.route));
  if (layouts.exchange) facts.emplace_back("exchange", ToText(*layouts.exchange));
  if (layouts.ring) facts.emplace_back("ring", ToText(*layouts.ring));
  if (const std::string unit = UnitText(*compiled, *target); !unit.empty()) facts.emplace_back("fsdp unit", unit);
  for (std::string_view path = module.path; !path.empty(); path = ParentOf(path)) {
    if (std::ranges::binary_search(compiled->recomputed, path))
      facts.emplace_back("recomputed", "with " + std::string(path));
  }
  if (!layouts.missing.empty()) facts.emplace_back("cannot run yet", layouts.missing);
  out.tables = {Table::Facts("module", facts), ParametersTable(*compiled, *target, call.workspace.rank()),
                RedistributionsTable(*compiled, target->module), RulesTable(plan, paths, winners)};
  return out;
}

}  // namespace moonshard
