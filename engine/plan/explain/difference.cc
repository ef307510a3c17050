#include "engine/plan/explain/difference.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "engine/core/base/text.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

// What identifies a rule in both plans: its pattern, and how many rules with that pattern follow it.
using RuleKey = std::tuple<PatternSyntax, std::string, int>;

std::vector<RuleKey> KeysOf(const Plan& plan) {
  std::map<std::pair<PatternSyntax, std::string>, int> seen;
  std::vector<RuleKey> keys(plan.rules.size());
  for (size_t i = keys.size(); i-- > 0;) {
    const Rule& rule = plan.rules[i];
    keys[i] = {rule.syntax, rule.pattern, seen[{rule.syntax, rule.pattern}]++};
  }
  return keys;
}

std::vector<PlanDifference::RuleChange> CompareRules(const CompiledPlan& before, const CompiledPlan& after) {
  std::map<RuleKey, size_t> old;
  const std::vector<RuleKey> old_keys = KeysOf(*before.plan);
  for (size_t i = 0; i < old_keys.size(); ++i) old.emplace(old_keys[i], i);
  std::vector<bool> kept(old_keys.size());
  std::vector<PlanDifference::RuleChange> changes;
  const std::vector<RuleKey> keys = KeysOf(*after.plan);
  for (size_t i = 0; i < keys.size(); ++i) {
    const Rule& rule = after.plan->rules[i];
    PlanDifference::RuleChange change{rule.pattern, rule.source.ToString()};
    change.after = after.rule_matches[i];
    if (const auto found = old.find(keys[i]); found != old.end()) {
      kept[found->second] = true;
      change.before = before.rule_matches[found->second];
    }
    if (change.before != change.after) changes.push_back(std::move(change));
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    const Rule& rule = before.plan->rules[i];
    if (kept[i]) continue;
    changes.push_back({rule.pattern, rule.source.ToString(), before.rule_matches[i], PlanDifference::kAbsent});
  }
  return changes;
}

using Parts = std::vector<std::pair<std::string, std::string>>;  // what -> text

void AddRedistributionDifferences(Parts& parts, const std::string& side,
                                  const std::vector<std::optional<Redistribution>>& redistributions) {
  for (size_t i = 0; i < redistributions.size(); ++i) {
    const std::string what = redistributions.size() > 1 ? side + " " + std::to_string(i) : side;
    if (redistributions[i]) parts.emplace_back(what, RedistributionText(*redistributions[i]));
  }
}

Parts PartsOf(const CompiledPlan& plan, size_t module) {
  const ModuleLayouts& layouts = plan.LayoutsOf(module);
  const ModuleTree::Signature& signature = plan.tree->parameters(plan.tree->modules()[module]);
  Parts parts = {{"style", layouts.style}};
  for (size_t i = 0; i < signature.size(); ++i) parts.emplace_back(signature[i].name, layouts.params[i].ToText());
  AddRedistributionDifferences(parts, "input", layouts.inputs);
  AddRedistributionDifferences(parts, "output", layouts.outputs);
  if (!layouts.after.empty()) parts.emplace_back("added late", Join(layouts.after, ", "));
  if (layouts.lookup == Lookup::kMasked) parts.emplace_back("lookup", "masked");
  if (layouts.route) parts.emplace_back("route", ToText(*layouts.route));
  if (layouts.exchange) parts.emplace_back("exchange", ToText(*layouts.exchange));
  if (layouts.ring) parts.emplace_back("ring", ToText(*layouts.ring));
  return parts;
}

// The properties that differ, in the second plan's order, then those of the first only.
std::vector<PlanDifference::Part> Differing(const Parts& before, const Parts& after) {
  std::vector<PlanDifference::Part> out;
  const auto find = [](const Parts& parts, const std::string& what) {
    const auto found = std::ranges::find(parts, what, &Parts::value_type::first);
    return found == parts.end() ? std::string() : found->second;
  };
  for (const auto& [what, text] : after) {
    const std::string old = find(before, what);
    if (old != text) out.push_back({what, old, text});
  }
  for (const auto& [what, text] : before) {
    if (std::ranges::find(after, what, &Parts::value_type::first) == after.end()) out.push_back({what, text, ""});
  }
  return out;
}

// Groups modules of one path class that change in the same way. Both plans store one ModuleLayouts for all modules with
// the same layouts, so a pair of indices is compared once, however many modules have it.
class Grouping {
 public:
  Grouping(const CompiledPlan& before, const CompiledPlan& after) : before_(before), after_(after) {}

  // `old` or `fresh` may be -1: the module is not in that tree.
  void Add(int64_t old, int64_t fresh) {
    const auto pair = std::pair(old < 0 ? kNone : before_.layouts_of[static_cast<size_t>(old)],
                                fresh < 0 ? kNone : after_.layouts_of[static_cast<size_t>(fresh)]);
    const auto [entry, unseen] = parts_.try_emplace(pair);
    if (unseen) entry->second = Compared(old, fresh);
    if (entry->second.empty()) return;
    const Module& module = fresh >= 0 ? after_.tree->modules()[static_cast<size_t>(fresh)]
                                      : before_.tree->modules()[static_cast<size_t>(old)];
    const auto [number, first] =
        numbers_.try_emplace({module.path_class, fresh >= 0, pair.first, pair.second}, changes_.size());
    if (first) {
      changes_.push_back({"", 0, entry->second});
      paths_.emplace_back();
    }
    paths_[number->second].push_back(module.path);
  }

  std::vector<PlanDifference::ModuleChange> Take() {
    for (size_t i = 0; i < changes_.size(); ++i) {
      changes_[i].path = FoldPaths(paths_[i]);
      changes_[i].modules = static_cast<int64_t>(paths_[i].size());
    }
    return std::move(changes_);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  std::vector<PlanDifference::Part> Compared(int64_t old, int64_t fresh) const {
    if (old < 0) return {{"module", "", "present"}};
    if (fresh < 0) return {{"module", "present", ""}};
    return Differing(PartsOf(before_, static_cast<size_t>(old)), PartsOf(after_, static_cast<size_t>(fresh)));
  }

  const CompiledPlan& before_;
  const CompiledPlan& after_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<PlanDifference::Part>> parts_;
  std::map<std::tuple<uint32_t, bool, uint32_t, uint32_t>, size_t> numbers_;
  std::vector<PlanDifference::ModuleChange> changes_;
  std::vector<std::vector<std::string>> paths_;
};

// Adds the paths that only one of two lists has, as changes of `what`.
void AddPaths(const char* what, const std::vector<std::string>& before, const std::vector<std::string>& after,
              PlanDifference& out) {
  std::map<std::pair<bool, std::string>, std::vector<std::string>> groups;  // by whether it is new, and path class
  const auto gather = [&](const std::vector<std::string>& some, const std::vector<std::string>& others, bool fresh) {
    const std::set<std::string> known(others.begin(), others.end());
    for (const std::string& path : some) {
      if (!known.contains(path)) groups[{fresh, PathClassOf(path)}].push_back(path);
    }
  };
  gather(after, before, true);
  gather(before, after, false);
  for (const auto& [key, paths] : groups) {
    const std::string path = FoldPaths(paths);
    out.modules.push_back({path.empty() ? "(root)" : path,
                           static_cast<int64_t>(paths.size()),
                           {{what, key.first ? "" : "yes", key.first ? "yes" : ""}}});
  }
}

std::vector<std::string> UnitPaths(const CompiledPlan& plan) {
  std::vector<std::string> paths;
  for (const ShardedUnit& unit : plan.units) paths.push_back(unit.path);
  return paths;
}

// The modules whose adapters differ, also in their settings, and the active adapter.
void AddAdapters(const CompiledPlan& before, const CompiledPlan& after, PlanDifference& out) {
  if (before.active_adapter() != after.active_adapter()) {
    out.modules.push_back({"(root)", 1, {{"active adapter", before.active_adapter(), after.active_adapter()}}});
  }
  std::map<std::pair<std::string, std::string>, std::pair<std::string, std::string>> settings;  // by path and name
  const auto adapter_of = [](const CompiledPlan& plan, int32_t section) -> const Adapter& {
    return plan.plan->adapters[static_cast<size_t>(section)];
  };
  for (const auto& [path, section] : before.adapted) {
    const Adapter& adapter = adapter_of(before, section);
    settings[{path, adapter.name}].first = SettingsText(adapter);
  }
  for (const auto& [path, section] : after.adapted) {
    const Adapter& adapter = adapter_of(after, section);
    settings[{path, adapter.name}].second = SettingsText(adapter);
  }
  // By name, settings and path class.
  std::map<std::tuple<std::string, std::string, std::string, std::string>, std::vector<std::string>> groups;
  for (const auto& [key, texts] : settings) {
    const auto& [path, name] = key;
    if (texts.first != texts.second) groups[{name, texts.first, texts.second, PathClassOf(path)}].push_back(path);
  }
  for (const auto& [key, paths] : groups) {
    const auto& [name, old, fresh, path_class] = key;
    out.modules.push_back({FoldPaths(paths), static_cast<int64_t>(paths.size()), {{"adapter " + name, old, fresh}}});
  }
}

}  // namespace

PlanDifference Compare(const CompiledPlan& before, const CompiledPlan& after) {
  PlanDifference out;
  out.rules = CompareRules(before, after);
  Grouping grouping(before, after);
  const std::vector<Module>& modules = after.tree->modules();
  const bool same_tree = before.tree == after.tree;
  for (size_t m = 0; m < modules.size(); ++m) {
    const auto fresh = static_cast<int64_t>(m);
    grouping.Add(same_tree ? fresh : before.tree->Find(modules[m].path), fresh);
  }
  for (size_t m = 0; !same_tree && m < before.tree->modules().size(); ++m) {
    if (after.tree->Find(before.tree->modules()[m].path) < 0) grouping.Add(static_cast<int64_t>(m), -1);
  }
  out.modules = grouping.Take();
  AddPaths("fsdp unit", UnitPaths(before), UnitPaths(after), out);
  AddPaths("recomputed", before.recomputed, after.recomputed, out);
  AddAdapters(before, after, out);
  return out;
}

}  // namespace moonshard
