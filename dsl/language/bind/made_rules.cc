#include "dsl/language/bind/made_rules.h"

#include <set>
#include <string_view>
#include <vector>

#include "dsl/language/bind/evaluation.h"
#include "dsl/language/state/lua.h"
#include "engine/core/base/join_first.h"

namespace moonshard {
namespace {

constexpr size_t kMostMadeRules = 10'000;  // watched; a plan has no more
constexpr size_t kLongestPattern = 4096;
constexpr size_t kMostLost = 20;  // lines that are reported
constexpr size_t kMostNamed = 4;  // patterns of one line

std::string Named(const std::vector<std::string>& patterns) {
  std::vector<std::string> named;
  for (const std::string& pattern : patterns) named.push_back("'" + pattern + "'");
  return JoinFirst(named, kMostNamed);
}

}  // namespace

void MadeRules::Add(lua_State* L, const Rule& rule) {
  Evaluation& evaluation = Evaluation::From(L);
  const std::vector<RunningFile>& running = evaluation.running();
  if (running.empty() || (running.size() > 1 && running.back().folder.empty())) return;
  if (count_ >= kMostMadeRules || rule.pattern.size() > kLongestPattern) return;
  Line& line = lines_[{rule.source.file, rule.source.line}];
  if (line.patterns.contains(rule.pattern)) return;
  evaluation.state().TakeMemory(sizeof(Line) + rule.source.file.size() + rule.pattern.size());
  ++count_;
  line.patterns.insert(rule.pattern);
  lua_Debug record;
  bool user_frame = false;
  for (int level = 1; !user_frame && lua_getstack(L, level, &record) != 0; ++level) {
    lua_getinfo(L, "Sl", &record);
    if (record.currentline < 0) continue;
    user_frame = !evaluation.state().sources().IsInternal(record.source + 1);  // after '@'
    if (user_frame) line.in_function = record.what != std::string_view("main");
    if (!user_frame) line.by_block = true;
  }
}

Diagnostics MadeRules::LostFrom(const Plan& plan, const Sources& sources) const {
  using Place = std::pair<std::string, int>;
  std::set<Place> lines;
  std::set<std::pair<Place, std::string>> rules;
  for (const Rule& rule : plan.rules) {
    const std::pair place(rule.source.file, rule.source.line);
    lines.insert(place);
    rules.insert({place, rule.pattern});
  }
  Diagnostics out;
  for (const auto& [place, line] : lines_) {
    if (out.size() == kMostLost) break;
    std::vector<std::string> lost;
    for (const std::string& pattern : line.patterns) {
      if (!rules.contains({place, pattern})) lost.push_back(pattern);
    }
    if (lost.empty() || (line.by_block && lines.contains(place))) continue;
    const bool one = lost.size() == 1;
    const std::string what = one ? "the rule for '" + lost.front() + "' is not part of the plan and has no effect"
                                 : std::to_string(lost.size()) + " rules are not part of the plan and have no effect";
    Diagnostic d =
        MakeDiagnostic(Finding::kLostRule, what, sources.SpanOf(place.first, place.second, line.by_block ? "" : "at"));
    if (!one) d.declared = "rules for " + Named(lost);
    if (line.in_function) {
      d.help = "return the rules from the function, and put the function's result within the braces of plan { ... }";
    } else if (lost.size() > 1 && !line.by_block) {
      d.help =
          "collect the rules in a list: local rules <const> = {}, then table.insert(rules, at(...)) for each rule, and "
          "return plan { rules }";
    } else {
      d.help = "write rules within the braces of plan { ... }, directly or in a list";
    }
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace moonshard
