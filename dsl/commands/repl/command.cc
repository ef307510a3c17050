#include "dsl/commands/repl/command.h"

#include <algorithm>
#include <array>

#include "engine/plan/explain/difference.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

constexpr auto kCommands = std::to_array<CommandInfo>({
    {":load", "[MODEL | PLAN]", "loads another model directory, exported program or plan; alone: shows what is loaded",
     "A directory is a model; anything else is a plan: a file, the name of a shipped plan, hf:FILE[#KEY], or "
     "'auto' for\n"
     "the plan that is chosen by architecture.",
     ArgumentKind::kPlan, &RunLoad},
    {":reload", "", "reads the plan's files again and shows what changed", "", ArgumentKind::kNone, &RunReload},
    {":watch", "[on | off]", "reloads whenever one of the plan's files is saved",
     "A file that an editor replaces is reloaded too. Shows the changes as :reload does.", ArgumentKind::kSwitch,
     &RunWatch},
    {":mesh", "[AXIS=SIZE,...]", "sizes of the mesh axes, as in :mesh tp=4,dp=2; alone: shows them", "",
     ArgumentKind::kMesh, &RunMesh},
    {":option", "[NAME=VALUE | NAME=]", "sets or resets an option of the plan; alone: lists them",
     "A value is rejected if the plan does not evaluate with it. NAME alone shows the value.", ArgumentKind::kOption,
     &RunOption},
    {":rank", "[N]", "the rank whose local shapes and bytes are shown", "", ArgumentKind::kNone, &RunRank},
    {":tree", "[PATTERN]",
     "shows the modules that match a pattern, their descendants, and the parameters of each; identical modules share "
     "one line",
     "", ArgumentKind::kPattern, &RunTree},
    {":match", "PATTERN", "what a pattern matches: count, folded paths, and the RE2 expression",
     "PATTERN with or without quotes; re[[...]] is a raw expression.", ArgumentKind::kPattern, &RunMatch},
    {":why", "PATH", "what the plan does with a module or parameter, with the rule and its line",
     "Shows rule, line, shapes, layouts, and redistributions with the collectives of forward and backward. PATH may be "
     "a pattern: its\n"
     "first module is shown.",
     ArgumentKind::kPath, &RunWhy},
    {":try", "\"PATTERN\" STYLE", "what one more rule would change; the plan stays the same",
     "The rule has precedence over all rules of the plan. STYLE is Lua for a style or a layout: colwise { heads = 8 }, "
     "shard(0);\n"
     "colwise alone means colwise {}.",
     ArgumentKind::kTry, &RunTry},
    {":unmatched", "", "rules that match nothing, and parameters that no rule claims", "", ArgumentKind::kNone,
     &RunUnmatched},
    {":conflicts", "", "modules that several rules claim, and which rule wins where one extends the other", "",
     ArgumentKind::kNone, &RunConflicts},
    {":flow", "LAYER", "the layouts of the tensors between the modules of one layer",
     "LAYER is a number or a path. Headers do not contain the order of calls, so modules are in the usual order of a "
     "decoder,\n"
     "as far as names and layouts determine the order. Modules of an exported program are in the order of their "
     "calls,\n"
     "and two tables show the inputs and the outputs of the layer (or of any module), with the operators between.",
     ArgumentKind::kLayer, &RunFlow},
    {":cost", "[B,S]",
     "parameter bytes on this rank, and the collectives of one step with their bytes: in total and by module",
     "B,S: batch and sequence of the input, for the bytes of collectives.", ArgumentKind::kNone, &RunCost},
    {":diff", "PLAN", "compares the current plan with another plan, on the same model, mesh and options", "",
     ArgumentKind::kPlan, &RunDiff},
    {":verify", "[ARGUMENTS]", "runs `moonshard verify`: compares the sharded model with the unsharded one",
     "For the reference architectures, with weights. ARGUMENTS are passed on: --tolerance 1e-3.", ArgumentKind::kNone,
     &RunVerify},
    {":save", "FILE",
     "FILE.lua: a plan that extends the current plan with the tried rules; other FILE: the lines of the session, "
     "for -f",
     "An existing file is not overwritten.", ArgumentKind::kFile, &RunSave},
    {":mode", "[table | json | csv | md]", "the output format", "", ArgumentKind::kMode, &RunMode},
    {":help", "[TOPIC]", "explains a command, a builtin, a key or a finding; alone: lists the commands", "",
     ArgumentKind::kTopic, &RunHelp},
    {":quit", "", "ends the session, as Ctrl-D does", "", ArgumentKind::kNone, &RunQuit},
});

std::string CountText(const CollectiveCount& count) {
  return count.count == 0 ? "-" : std::to_string(count.count) + " (" + BytesText(count.bytes) + ")";
}

Table TotalsTable(const PlanTotals& before, const PlanTotals& after) {
  Table table("totals", {"what", "before", "after"});
  const auto add = [&](const char* what, const JsonValue& left, const JsonValue& right) {
    if (left != right) table.rows.push_back({what, left, right});
  };
  if (before.bytes_per_rank != after.bytes_per_rank) {
    add("bytes per rank", BytesText(before.bytes_per_rank), BytesText(after.bytes_per_rank));
  }
  add("elements in sharded parameters", before.sharded_params, after.sharded_params);
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (CollectiveKind kind : kCollectiveKinds) {
      const CollectiveCount& left = before.collectives.of(direction, kind);
      const CollectiveCount& right = after.collectives.of(direction, kind);
      const std::string what = std::string(ToString(kind)) + " " + ToString(direction);
      if (left != right) add(what.c_str(), CountText(left), CountText(right));
    }
  }
  return table;
}

}  // namespace

std::span<const CommandInfo> AllCommands() { return kCommands; }

const CommandInfo* FindCommand(std::string_view name) {
  const CommandInfo* found = nullptr;
  for (const CommandInfo& command : kCommands) {
    if (name == command.name) return &command;
    if (name.size() < 2 || !std::string_view(command.name).starts_with(name)) continue;
    if (found != nullptr) return nullptr;
    found = &command;
  }
  return found;
}

Answer Refused(const CommandCall& call, std::string message, std::string help) {
  Answer out;
  SourceSpan where;
  where.file = call.place.file;
  where.line = call.place.line;
  where.text = call.place.text;
  Diagnostic d = MakeDiagnostic(Finding::kBadArgument, std::move(message), std::move(where));
  d.help = std::move(help);
  out.diagnostics.push_back(std::move(d));
  return out;
}

Diagnostics AtLine(const CommandCall& call, Diagnostics diagnostics) {
  const Answer place = Refused(call, "");
  for (Diagnostic& d : diagnostics) {
    const bool argument = d.where.line == 0 && d.where.known() && d.where.file == call.arguments;
    if (argument) d.message = "'" + d.where.file + "': " + d.message;
    if (argument || !d.where.known()) d.where = place.diagnostics.front().where;
  }
  return diagnostics;
}

std::optional<Answer> NeedModel(const CommandCall& call) {
  if (call.workspace.model() != nullptr) return std::nullopt;
  return Refused(call, "no model is loaded", ":load DIRECTORY, with config.json and safetensors");
}

std::optional<Answer> NeedPlan(const CommandCall& call) {
  if (std::optional<Answer> refused = NeedModel(call)) return refused;
  if (call.workspace.plan() != nullptr) return std::nullopt;
  return Refused(call, "the plan does not evaluate", ":reload shows the errors; fix the plan, or :load another plan");
}

std::optional<Answer> NeedCompiled(const CommandCall& call) {
  if (std::optional<Answer> refused = NeedPlan(call)) return refused;
  if (call.workspace.compiled() != nullptr) return std::nullopt;
  return Refused(call, "the plan has errors, so its effect is unknown",
                 ":reload shows the errors; :why, :conflicts and :unmatched also work on a plan with errors");
}

Table Summary(Workspace& workspace) {
  std::vector<std::pair<std::string, JsonValue>> facts;
  const LoadedModel* model = workspace.model();
  facts.emplace_back("model", model == nullptr ? "none" : model->folder);
  if (model != nullptr) {
    if (!model->program.empty()) facts.emplace_back("program", model->program);
    facts.emplace_back("modules", model->tree->modules().size());
    facts.emplace_back("parameters", model->tree->total_elements());
  }
  const Plan* plan = workspace.plan();
  std::string name = plan == nullptr ? workspace.plan_name() : plan->name;
  if (plan != nullptr && !plan->chosen.empty()) name += " (" + plan->chosen + ")";
  facts.emplace_back("plan", name.empty() ? "none" : name);
  facts.emplace_back("mesh", workspace.mesh().ToString());
  facts.emplace_back("rank", workspace.rank());
  std::string options;
  for (const auto& [option, value] : workspace.options())
    options += (options.empty() ? "" : " ") + option + "=" + value;
  if (!options.empty()) facts.emplace_back("options", options);
  if (workspace.compiled() != nullptr) {
    const PlanTotals& totals = workspace.totals();
    facts.emplace_back("sharded", totals.sharded_params);
    facts.emplace_back("bytes per rank", totals.bytes_per_rank);
  } else if (HasErrors(workspace.resolution().diagnostics)) {
    facts.emplace_back("state", "the plan has errors");
  }
  Table table = Table::Facts("session", facts);
  table.byte_columns = {"bytes per rank"};
  return table;
}

std::vector<Table> Changes(const CompiledPlan& before, const PlanTotals& before_totals, const CompiledPlan& after,
                           const PlanTotals& after_totals) {
  const PlanDifference difference = Compare(before, after);
  Table rules("rules", {"pattern", "source", "before", "after"});
  const auto count = [](int64_t n) { return n == PlanDifference::kAbsent ? JsonValue("-") : JsonValue(n); };
  for (const auto& change : difference.rules) {
    rules.rows.push_back({change.pattern, change.source, count(change.before), count(change.after)});
  }
  Table modules("modules", {"path", "modules", "what", "before", "after"});
  for (const auto& change : difference.modules) {
    for (const PlanDifference::Part& part : change.parts) {
      modules.rows.push_back({change.path, change.modules, part.what, part.before.empty() ? "-" : part.before,
                              part.after.empty() ? "-" : part.after});
    }
  }
  std::vector<Table> out = {std::move(rules), std::move(modules), TotalsTable(before_totals, after_totals)};
  std::erase_if(out, [](const Table& table) { return table.rows.empty(); });
  return out;
}

Diagnostics NewOnes(const Diagnostics& now, const Diagnostics& before) {
  Diagnostics out;
  for (const Diagnostic& d : now) {
    const auto same = [&](const Diagnostic& other) { return other.ToText() == d.ToText(); };
    if (d.severity == Severity::kError || std::ranges::none_of(before, same)) out.push_back(d);
  }
  return out;
}

Answer ResolveAgain(Workspace& workspace) {
  const Diagnostics known = workspace.resolution().diagnostics;
  workspace.Resolve();
  Answer out;
  out.changed = true;
  out.diagnostics = NewOnes(workspace.resolution().diagnostics, known);
  const CompiledPlan* compiled = workspace.compiled();
  const CompiledPlan* previous = workspace.previous();
  if (compiled != nullptr && previous != nullptr) {
    out.tables = Changes(*previous, workspace.previous_totals(), *compiled, workspace.totals());
    if (out.tables.empty()) out.notes.emplace_back("nothing changed");
  } else if (compiled != nullptr) {
    out.notes.emplace_back("the plan has no errors");
  }
  return out;
}

TypedPattern ReadPattern(const std::string& text) {
  const auto unquoted = [](const std::string& quoted) {
    if (quoted.size() >= 4 && quoted.starts_with("[[") && quoted.ends_with("]]"))
      return quoted.substr(2, quoted.size() - 4);
    const bool quotes = quoted.size() >= 2 && (quoted[0] == '"' || quoted[0] == '\'') && quoted.back() == quoted[0];
    return quotes ? quoted.substr(1, quoted.size() - 2) : quoted;
  };
  for (const auto& [word, syntax] :
       {std::pair("re", PatternSyntax::kRegex), std::pair("numbered", PatternSyntax::kNumbered)}) {
    if (!text.starts_with(word)) continue;
    std::string rest = text.substr(std::string_view(word).size());
    rest.erase(0, rest.find_first_not_of(' '));
    const std::string inner = unquoted(rest);
    if (inner != rest) return {inner, syntax};
  }
  // A dot at the end is where completion left off: no path ends with one.
  std::string glob = unquoted(text);
  if (glob.size() > 1 && glob.ends_with('.')) glob.pop_back();
  return {std::move(glob), PatternSyntax::kGlob};
}

std::string RuleText(const CompiledPlan& plan, const ModuleLayouts& layouts) {
  if (layouts.is_fallback) return "default, " + plan.plan->fallback_source.ToString();
  if (layouts.rule < 0) return "no rule";
  return plan.plan->rules[static_cast<size_t>(layouts.rule)].source.ToString();
}

}  // namespace moonshard
