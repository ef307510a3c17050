// :tree, :match.
#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "dsl/commands/repl/command.h"
#include "engine/core/base/text.h"
#include "engine/plan/explain/texts.h"
#include "engine/plan/match/coverage.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

std::string ParametersText(const ModuleTree::Signature& signature) {
  std::vector<std::string> texts;
  for (const Parameter& p : signature) {
    texts.push_back(p.name + " " + ShapeToString(p.shape) + " " + ToString(p.dtype) + (p.is_buffer ? " buffer" : ""));
  }
  return Join(texts, ", ");
}

int64_t ElementsOf(const ModuleTree::Signature& signature) {
  int64_t sum = 0;
  for (const Parameter& p : signature) sum += p.is_buffer ? 0 : p.elements();
  return sum;
}

bool Matches(const RE2& expression, const std::string& path) { return RE2::FullMatch(path, expression); }

// As it was typed: an expression in re[[...]].
std::string PatternText(const TypedPattern& pattern) {
  switch (pattern.syntax) {
    case PatternSyntax::kRegex: return "re[[" + pattern.text + "]]";
    case PatternSyntax::kNumbered: return "numbered\"" + pattern.text + "\"";
    default: return pattern.text;
  }
}

// The rule that places a parameter: its own, else its module's.
std::string ClaimOf(const CompiledPlan& plan, const MatchedPlan& matched, ParamRef parameter) {
  const int32_t own = matched.ParameterRuleOf(parameter);
  return own != MatchedPlan::kNoRule ? plan.plan->rules[static_cast<size_t>(own)].source.ToString()
                                     : RuleText(plan, plan.LayoutsOf(parameter.module));
}

}  // namespace

Answer RunTree(CommandCall& call) {
  if (std::optional<Answer> refused = NeedModel(call)) return *refused;
  const ModuleTree& tree = *call.workspace.model()->tree;
  std::string regex = ".*";
  if (!call.arguments.empty()) {
    const TypedPattern typed = ReadPattern(call.arguments);
    const Result<Pattern> pattern = TranslatePattern(typed.text, typed.syntax);
    if (!pattern.ok()) return {.diagnostics = AtLine(call, pattern.diagnostics())};
    regex = "(?:" + pattern.value().regex + R"()(?:\..*)?)";  // a module, and what is below it
  }
  const RE2 expression(regex);
  // In the tree order of the first of each group.
  std::map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  std::vector<std::vector<uint32_t>> groups;
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    const Module& module = tree.modules()[m];
    if (!Matches(expression, module.path)) continue;
    const auto [entry, fresh] = numbers.try_emplace({module.path_class, module.signature}, groups.size());
    if (fresh) groups.emplace_back();
    groups[entry->second].push_back(m);
  }
  Table table("modules", {"path", "modules", "kind", "parameters", "elements"});
  for (const std::vector<uint32_t>& group : groups) {
    const Module& module = tree.modules()[group.front()];
    std::vector<std::string> paths;
    for (uint32_t m : group) paths.push_back(tree.modules()[m].path);
    const ModuleTree::Signature& signature = tree.parameters(module);
    const std::string path = FoldPaths(paths);
    table.rows.push_back({path.empty() ? "(root)" : path, group.size(), module.kind, ParametersText(signature),
                          ElementsOf(signature) * static_cast<int64_t>(group.size())});
  }
  if (!table.rows.empty()) return {.tables = {std::move(table)}};
  const std::string nearest = call.workspace.model()->paths.Nearest(call.arguments);
  return Refused(call, "there is no module at '" + call.arguments + "' or below it",
                 nearest.empty() ? "" : "nearest path: " + nearest);
}

Answer RunMatch(CommandCall& call) {
  if (std::optional<Answer> refused = NeedModel(call)) return *refused;
  if (call.arguments.empty())
    return Refused(call, ":match takes a pattern", ":match model.layers.*.mlp.{gate,up}_proj");
  const ModuleTree& tree = *call.workspace.model()->tree;
  const TypedPattern typed = ReadPattern(call.arguments);
  const Result<Pattern> pattern = TranslatePattern(typed.text, typed.syntax);
  if (!pattern.ok()) return {.diagnostics = AtLine(call, pattern.diagnostics())};
  const RE2 expression(pattern.value().regex);
  const CompiledPlan* plan = call.workspace.compiled();
  struct Group {
    std::vector<std::string> paths;
    std::string rule;
  };
  std::map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  std::vector<Group> groups;
  int64_t modules = 0;
  std::map<uint32_t, bool> by_class;  // one query for paths that differ only in numbers
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    const Module& module = tree.modules()[m];
    if (pattern.value().depends_on_numbers) {
      if (!Matches(expression, module.path)) continue;
    } else {
      const auto [known, fresh] = by_class.try_emplace(module.path_class, false);
      if (fresh) known->second = Matches(expression, module.path);
      if (!known->second) continue;
    }
    ++modules;
    const uint32_t layouts = plan != nullptr ? plan->layouts_of[m] : 0;
    const auto [entry, fresh] = numbers.try_emplace({module.path_class, layouts}, groups.size());
    if (fresh) groups.push_back({{}, plan != nullptr ? RuleText(*plan, plan->LayoutsOf(m)) : ""});
    groups[entry->second].paths.push_back(module.path);
  }
  int64_t parameters = 0;
  std::map<std::tuple<uint32_t, uint32_t, std::string>, Group> parameter_groups;  // by path class, parameter and claim
  for (uint32_t m = 0; modules == 0 && m < tree.modules().size(); ++m) {
    for (uint32_t p = 0; p < tree.parameters(tree.modules()[m]).size(); ++p) {
      const std::string path = tree.PathOf({m, p});
      if (!Matches(expression, path)) continue;
      ++parameters;
      std::string rule = plan != nullptr ? ClaimOf(*plan, *call.workspace.resolution().matched, {m, p}) : "";
      Group& group = parameter_groups[{tree.modules()[m].path_class, p, rule}];
      group.paths.push_back(path);
      group.rule = std::move(rule);
    }
  }
  for (auto& [key, group] : parameter_groups) groups.push_back(std::move(group));
  Answer out;
  std::vector<std::pair<std::string, JsonValue>> facts = {
      {"pattern", PatternText(typed)}, {"RE2", pattern.value().regex}, {"modules", modules}};
  if (modules == 0) facts.emplace_back("parameters", parameters);
  out.tables.push_back(Table::Facts("match", facts));
  Table table("matches", {"path", "count", "claimed by"});
  for (const Group& group : groups) table.rows.push_back({FoldPaths(group.paths), group.paths.size(), group.rule});
  out.tables.push_back(std::move(table));
  if (modules + parameters > 0) return out;
  // The finding that match reports for such a rule.
  Rule rule;
  rule.pattern = typed.text;
  rule.syntax = typed.syntax;
  const std::string last = typed.text.substr(typed.text.rfind('.') + 1);
  for (const ModuleTree::Signature& signature : tree.signatures()) {
    const bool names_parameter = std::ranges::any_of(signature, [&](const Parameter& p) { return p.name == last; });
    if (names_parameter && last != typed.text) rule.parameter = Placement();
  }
  out.notes.push_back(NearestMatchText(tree, rule));
  return out;
}

}  // namespace moonshard
