// :try, :diff, :save.
#include <algorithm>
#include <filesystem>
#include <set>

#include "dsl/commands/repl/command.h"
#include "dsl/language/bind/builtins.h"
#include "engine/core/base/quoted.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

// `"PATTERN" STYLE` in two; the pattern ends at its quote or bracket, or where it is neither at the first blank outside
// braces.
std::pair<std::string, std::string> SplitTry(const std::string& text) {
  size_t end = std::string::npos;
  const size_t open = text.find_first_of("\"'[");
  const size_t blank = text.find(' ');
  if (open != std::string::npos && open < blank) {
    const bool brackets = text.compare(open, 2, "[[") == 0;
    if (brackets || text[open] != '[') {
      const size_t close = brackets ? text.find("]]", open) : text.find(text[open], open + 1);
      if (close != std::string::npos) end = close + (brackets ? 2 : 1);
    }
  }
  if (end == std::string::npos) end = blank;
  if (end == std::string::npos) return {text, ""};
  std::string style = text.substr(end);
  style.erase(0, std::min(style.find_first_not_of(" ,"), style.size()));
  return {text.substr(0, end), style};
}

// The same with `{}` after a builtin that is called with a table.
std::string StyleCode(const std::string& style) {
  const BuiltinInfo* builtin = FindBuiltin(style);
  return builtin != nullptr && TakesOneTable(*builtin) ? style + " {}" : style;
}

std::string PatternCode(const TypedPattern& pattern) {
  const char* word = pattern.syntax == PatternSyntax::kRegex      ? "re"
                     : pattern.syntax == PatternSyntax::kNumbered ? "numbered"
                                                                  : "";
  return word + Quoted(pattern.text);
}

// What `extends` takes for the current plan in a file of this directory; "" where there is no such name.
std::string NameForExtends(const Workspace& workspace, const std::filesystem::path& folder) {
  const std::string& wanted = workspace.plan_name();
  if (wanted.find('/') == std::string::npos && !wanted.ends_with(".lua")) {
    return wanted.starts_with("hf:") || workspace.plan() == nullptr ? "" : workspace.plan()->name;
  }
  std::error_code error;
  const std::filesystem::path relative =
      std::filesystem::relative(wanted, folder.empty() ? "." : folder, error).lexically_normal();
  const std::string text = relative.string();
  return error || text.empty() || text.starts_with("..") ? ""
         : text.ends_with(".lua")                        ? text.substr(0, text.size() - 4)
                                                         : text;
}

std::string OptionCode(const EvaluationRecord& record, const std::map<std::string, std::string>& options) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : options) {
    const auto declared = record.options.find(name);
    const bool text = declared != record.options.end() && declared->second.fallback.is_string();
    texts.push_back("[" + Quoted(name) + "] = " + (text ? Quoted(value) : value));
  }
  return texts.empty() ? "" : "options { " + Join(texts, ", ") + " }\n";
}

std::set<std::string> ErrorTexts(const Diagnostics& diagnostics) {
  std::set<std::string> out;
  for (const Diagnostic& d : diagnostics) {
    if (d.severity == Severity::kError) out.insert(d.ToText());
  }
  return out;
}

std::optional<Answer> CannotWrite(const CommandCall& call, const std::string& path, const std::string& text) {
  if (std::error_code ignored; std::filesystem::exists(path, ignored))
    return Refused(call, "the file '" + path + "' already exists", "give another name");
  std::optional<Diagnostic> failed = WriteText(path, text);
  if (!failed) return std::nullopt;
  return Answer{.diagnostics = AtLine(call, {*std::move(failed)})};
}

}  // namespace

// The rule is placed in front of a copy of the plan at level 0, and the levels of the plan's rules are one higher, as
// in a plan that extends this one. A lower level has precedence, so the rule is never in conflict with one of the plan,
// and :save can write it as such a plan. Errors that the plan has without the rule are not repeated; only those that
// the rule adds are shown.
Answer RunTry(CommandCall& call) {
  if (std::optional<Answer> refused = NeedPlan(call)) return *refused;
  const auto [pattern, style] = SplitTry(call.arguments);
  if (style.empty()) {
    return Refused(call, ":try takes a pattern and a style", ":try \"model.layers.*.mlp.up_proj\" replicated {}");
  }
  Result<Rule> rule = call.runner.MakeRule(pattern, style, call.place);
  if (!rule.ok()) return {.diagnostics = rule.diagnostics()};
  auto plan = std::make_shared<Plan>(*call.workspace.plan());
  for (Rule& other : plan->rules) ++other.level;
  plan->rules.insert(plan->rules.begin(), rule.value());
  Resolution tried =
      RunPasses(plan, call.workspace.model()->tree, call.workspace.mesh(), call.workspace.model()->config);
  Answer out;
  const std::set<std::string> known = ErrorTexts(call.workspace.resolution().diagnostics);
  out.diagnostics = NewOnes(tried.diagnostics, call.workspace.resolution().diagnostics);
  const size_t own = std::erase_if(out.diagnostics, [&](const Diagnostic& d) { return known.contains(d.ToText()); });
  if (!tried.compiled) {
    out.failed = true;
    if (own > 0) {
      out.notes.push_back("the plan has " + std::to_string(own) + (own == 1 ? " error" : " errors") +
                          " of its own, which this rule does not fix; :reload shows " + (own == 1 ? "it" : "them"));
    }
    if (known.size() > own)
      out.notes.push_back("the rule fixes " + std::to_string(known.size() - own) +
                          (known.size() - own == 1 ? " error" : " errors") + " of the plan");
    return out;
  }
  call.state.tried.push_back("at(" + PatternCode(ReadPattern(pattern)) + ", " + StyleCode(style) + ")");
  const CompiledPlan* compiled = call.workspace.compiled();
  const int64_t matches = tried.compiled->rule_matches.front();
  out.notes.push_back("the rule would claim " + std::to_string(matches) +
                      (rule.value().parameter ? " parameter" : " module") + (matches == 1 ? "" : "s"));
  if (compiled == nullptr) {
    out.notes.emplace_back("with the rule, the plan has no errors");
    return out;
  }
  out.tables =
      Changes(*compiled, call.workspace.totals(), *tried.compiled, TotalsOf(*tried.compiled, call.workspace.rank()));
  if (out.tables.size() <= 1) out.notes.emplace_back("nothing would change");
  return out;
}

Answer RunDiff(CommandCall& call) {
  if (std::optional<Answer> refused = NeedCompiled(call)) return *refused;
  if (call.arguments.empty()) return Refused(call, ":diff takes a plan", ":diff other.lua");
  constexpr const char* kPlans = ":diff takes a plan: a file, the name of a shipped plan, or hf:FILE[#KEY]";
  std::error_code error;
  if (std::filesystem::is_directory(call.arguments, error)) {
    return Refused(call, "'" + call.arguments + "' is a directory", kPlans);
  }
  const Resolution other = call.workspace.ResolveOther(call.arguments);
  Answer out;
  out.diagnostics = AtLine(call, other.diagnostics);
  for (Diagnostic& d : out.diagnostics) {
    if (d.finding == Finding::kFileNotFound && d.help.empty()) d.help = kPlans;
  }
  if (!other.compiled) return out;
  out.tables = Changes(*call.workspace.compiled(), call.workspace.totals(), *other.compiled,
                       TotalsOf(*other.compiled, call.workspace.rank()));
  if (out.tables.empty()) out.notes.emplace_back("the plans have the same effect");
  return out;
}

Answer RunSave(CommandCall& call) {
  if (call.arguments.empty()) return Refused(call, ":save takes a file", ":save tried.lua, or :save session.txt");
  const std::string& path = call.arguments;
  if (!path.ends_with(".lua")) {
    std::string text;
    for (const std::string& line : call.state.good_lines) text += line + "\n";
    if (std::optional<Answer> refused = CannotWrite(call, path, text)) return *refused;
    return {
        .notes = {"wrote " + std::to_string(call.state.good_lines.size()) + " lines; repl -f " + path + " runs them"}};
  }
  if (std::optional<Answer> refused = NeedPlan(call)) return *refused;
  if (call.state.tried.empty())
    return Refused(call, "no rule was tried", ":try \"PATTERN\" STYLE, then :save FILE.lua");
  const std::string base = NameForExtends(call.workspace, std::filesystem::path(path).parent_path());
  if (base.empty()) {
    return Refused(call, "a plan in '" + path + "' cannot extend '" + call.workspace.plan_name() + "'",
                   call.workspace.plan_name().starts_with("hf:")
                       ? "moonshard import writes a Hugging Face plan to a plan file, which can be extended"
                       : "save the file in the directory of that plan");
  }
  std::string text =
      "-- " + Visible(std::filesystem::path(path).filename().string() + ": rules that were tried on top of " + base) +
      ".\n" + OptionCode(call.workspace.record(), call.workspace.options()) +
      "\nreturn plan {\n  api = 1,\n  extends " + Quoted(base) + ",\n";
  // A rule that was tried again counts once: two rules with one pattern would be in conflict.
  std::vector<std::string> rules;
  for (const std::string& rule : call.state.tried) {
    const std::string pattern = rule.substr(0, rule.find("\", "));
    std::erase_if(rules, [&](const std::string& other) { return other.starts_with(pattern + "\", "); });
    rules.push_back(rule);
  }
  for (const std::string& rule : rules) text += "  " + rule + ",\n";
  if (std::optional<Answer> refused = CannotWrite(call, path, text + "}\n")) return *refused;
  return {.notes = {"wrote a plan with " + std::to_string(rules.size()) + (rules.size() == 1 ? " rule" : " rules") +
                    " on top of " + base}};
}

}  // namespace moonshard
