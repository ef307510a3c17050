// :unmatched, :conflicts.
#include <algorithm>
#include <map>
#include <set>

#include "dsl/commands/repl/command.h"
#include "engine/plan/explain/texts.h"
#include "engine/plan/match/candidates.h"

namespace moonshard {
namespace {

// Paths by path class, folded at the end.
struct Paths {
  std::map<uint32_t, std::vector<std::string>> by_class;
  void Add(uint32_t path_class, std::string path) { by_class[path_class].push_back(std::move(path)); }
};

std::string StyleText(const Rule& rule) { return rule.parameter ? rule.parameter->ToText() : rule.style.name; }

std::string RuleText(const Rule& rule) {
  return "'" + rule.pattern + "' (" + StyleText(rule) + ", " + rule.source.ToString() + ")";
}

std::set<int32_t> Used(const Candidates& candidates) {
  std::set<int32_t> used;
  for (const auto& rules : candidates.of_module) used.insert(rules.begin(), rules.end());
  for (const auto& entry : candidates.of_parameter) used.insert(entry.rules.begin(), entry.rules.end());
  return used;
}

// The help of match for a rule that matches nothing: the nearest path.
std::string HelpFor(const Diagnostics& diagnostics, const Rule& rule) {
  for (const Diagnostic& d : diagnostics) {
    if (d.finding == Finding::kUnmatchedRule && d.where == rule.source && !d.help.empty()) return d.help;
  }
  return rule.optional ? "optional" : "";
}

}  // namespace

Answer RunUnmatched(CommandCall& call) {
  if (std::optional<Answer> refused = NeedPlan(call)) return *refused;
  const Plan& plan = *call.workspace.plan();
  const ModuleTree& tree = *call.workspace.model()->tree;
  const Candidates candidates = FindCandidates(plan, tree);
  const std::set<int32_t> used = Used(candidates);
  Table rules("rules", {"pattern", "style", "source", "nearest"});
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const Rule& rule = plan.rules[i];
    if (used.contains(static_cast<int32_t>(i))) continue;
    rules.rows.push_back({rule.pattern, StyleText(rule), rule.source.ToString(),
                          HelpFor(call.workspace.resolution().diagnostics, rule)});
  }
  std::set<ParamRef> claimed;
  for (const auto& entry : candidates.of_parameter) claimed.insert(entry.parameter);
  struct Group {
    std::vector<std::string> paths;
    int64_t elements = 0;
  };
  std::map<uint32_t, size_t> numbers;
  std::vector<Group> groups;
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    const Module& module = tree.modules()[m];
    if (!candidates.of_module[m].empty()) continue;
    int64_t elements = 0;
    for (uint32_t p = 0; p < tree.parameters(module).size(); ++p) {
      const Parameter& parameter = tree.At({m, p});
      if (!parameter.is_buffer && !claimed.contains({m, p})) elements += parameter.elements();
    }
    if (elements == 0) continue;
    const auto [entry, fresh] = numbers.try_emplace(module.path_class, groups.size());
    if (fresh) groups.emplace_back();
    groups[entry->second].paths.push_back(module.path);
    groups[entry->second].elements += elements;
  }
  Table modules("modules", {"path", "modules", "elements", "layout"});
  const std::string layout = plan.fallback ? "default(" + plan.fallback->name + ")" : "replicate, undeclared";
  for (const Group& group : groups) {
    modules.rows.push_back({FoldPaths(group.paths), group.paths.size(), group.elements, layout});
  }
  Answer out;
  out.diagnostics = candidates.diagnostics;
  if (rules.rows.empty()) out.notes.emplace_back("every rule matches something");
  if (modules.rows.empty()) out.notes.emplace_back("every parameter is claimed by a rule");
  out.tables = {std::move(rules), std::move(modules)};
  return out;
}

Answer RunConflicts(CommandCall& call) {
  if (std::optional<Answer> refused = NeedPlan(call)) return *refused;
  const Plan& plan = *call.workspace.plan();
  const ModuleTree& tree = *call.workspace.model()->tree;
  const Candidates candidates = FindCandidates(plan, tree);
  std::map<std::pair<int32_t, int32_t>, Paths> conflicts;
  std::map<std::pair<int32_t, int32_t>, Paths> overridden;  // winner, loser
  const auto add = [&](const std::vector<int32_t>& rules, uint32_t path_class, const std::string& path) {
    if (rules.size() < 2) return;
    const int32_t winner = WinnerOf(plan, rules);
    for (int32_t rule : rules) {
      if (rule == winner) continue;
      const bool same = plan.rules[static_cast<size_t>(rule)].level == plan.rules[static_cast<size_t>(winner)].level;
      (same ? conflicts : overridden)[{winner, rule}].Add(path_class, path);
    }
  };
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    add(candidates.of_module[m], tree.modules()[m].path_class, tree.modules()[m].path);
  }
  for (const auto& entry : candidates.of_parameter) {
    add(entry.rules, tree.modules()[entry.parameter.module].path_class, tree.PathOf(entry.parameter));
  }
  const auto table = [&](const char* name, const char* first, const char* second, const auto& pairs) {
    Table out(name, {"path", "count", first, second});
    for (const auto& [pair, paths] : pairs) {
      for (const auto& [path_class, group] : paths.by_class) {
        out.rows.push_back({FoldPaths(group), group.size(), RuleText(plan.rules[static_cast<size_t>(pair.first)]),
                            RuleText(plan.rules[static_cast<size_t>(pair.second)])});
      }
    }
    return out;
  };
  Answer out;
  out.diagnostics = candidates.diagnostics;
  if (conflicts.empty()) out.notes.emplace_back("no module is claimed by two rules of one plan");
  out.tables = {table("conflicts", "one rule", "another", conflicts),
                table("overridden", "holds", "loses", overridden)};
  return out;
}

}  // namespace moonshard
