// :load, :reload, :watch, :mesh, :option, :rank, :verify, :mode, :quit.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "dsl/commands/repl/command.h"
#include "engine/core/base/text.h"
#include "engine/io/exported_program/program_archive.h"

namespace moonshard {
namespace {

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  for (std::string& word : Split(text, ' ')) {
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

// Whether the plan could not even be read, as after a slip in its name.
bool NotThere(const Workspace& workspace, const std::string& name) {
  return std::ranges::any_of(workspace.resolution().diagnostics, [&](const Diagnostic& d) {
    const bool finding = d.finding == Finding::kFileNotFound || d.finding == Finding::kFileUnreadable ||
                         d.finding == Finding::kPlanNotFound;
    return finding && (!d.where.known() || d.where.file == name || name.ends_with(d.where.file));
  });
}

// Sets an option, or resets it if the value is empty. A value with which the plan does not evaluate, as after a typing
// error in its name, is not kept: no command about the plan would work then.
Answer SetOption(Workspace& workspace, const std::string& name, const std::string& value) {
  const auto before = workspace.options().find(name);
  const std::optional<std::string> kept =
      before == workspace.options().end() ? std::nullopt : std::optional(before->second);
  const bool evaluated = workspace.plan() != nullptr;
  workspace.SetOption(name, value.empty() ? std::nullopt : std::optional(value));
  Answer out = ResolveAgain(workspace);
  if (!evaluated || workspace.plan() != nullptr) return out;
  workspace.SetOption(name, kept);
  workspace.Resolve();
  out.notes.emplace_back("the option was not changed");
  return out;
}

}  // namespace

Answer RunLoad(CommandCall& call) {
  Workspace& workspace = call.workspace;
  if (call.arguments.empty()) return {.tables = {Summary(workspace)}};
  std::error_code ignored;
  if (std::filesystem::is_directory(call.arguments, ignored) || IsProgramPath(call.arguments)) {
    Diagnostics problems = workspace.OpenModel(call.arguments);
    if (HasErrors(problems)) return {.diagnostics = std::move(problems)};
    workspace.Resolve();
    problems.insert(problems.end(), workspace.resolution().diagnostics.begin(),
                    workspace.resolution().diagnostics.end());
    Answer out;
    out.changed = true;
    out.tables.push_back(Summary(workspace));
    out.diagnostics = std::move(problems);
    return out;
  }
  const std::string before = workspace.plan_name();
  workspace.SetPlan(call.arguments == "auto" ? "" : call.arguments);
  Answer out = ResolveAgain(workspace);
  if (workspace.plan() == nullptr && NotThere(workspace, call.arguments)) {
    Diagnostics why = AtLine(call, out.diagnostics);
    for (Diagnostic& d : why) {
      if (d.help.empty())
        d.help =
            ":load takes a model directory, an exported program (.pt2), or a plan: a file, the name of a shipped plan, "
            "or hf:FILE[#KEY]";
    }
    workspace.SetPlan(before);
    workspace.Resolve();
    return {.diagnostics = std::move(why), .changed = true};
  }
  call.state.tried.clear();
  if (workspace.plan() != nullptr) out.tables.insert(out.tables.begin(), Summary(workspace));
  return out;
}

Answer RunReload(CommandCall& call) { return ResolveAgain(call.workspace); }

Answer RunWatch(CommandCall& call) {
  if (call.arguments == "off") {
    call.state.watch = false;
    return {.notes = {"stopped watching"}};
  }
  if (!call.arguments.empty() && call.arguments != "on") return Refused(call, ":watch takes on or off");
  const std::vector<std::string>& files = call.workspace.record().files;
  if (files.empty()) {
    return Refused(call, "no file of this plan can be watched", "a shipped plan is part of moonshard and has no files");
  }
  call.state.watch = true;
  return {.notes = {"watching " + Join(files, ", ")}};
}

Answer RunMesh(CommandCall& call) {
  if (!call.arguments.empty()) {
    Diagnostics problems = call.workspace.SetMesh(call.arguments);
    if (HasErrors(problems)) return {.diagnostics = AtLine(call, std::move(problems))};
    Answer out = ResolveAgain(call.workspace);
    out.notes.push_back("mesh " + call.workspace.mesh().ToString() + ", rank " + std::to_string(call.workspace.rank()));
    return out;
  }
  Table table("mesh", {"axis", "size"});
  const MeshShape& mesh = call.workspace.mesh();
  for (MeshAxis axis : kMeshAxes) table.rows.push_back({ToString(axis), mesh.size(axis)});
  if (mesh.cp_heads() > 1) table.rows.push_back({"cp_heads", mesh.cp_heads()});
  return {.tables = {std::move(table)}};
}

Answer RunOption(CommandCall& call) {
  Workspace& workspace = call.workspace;
  const size_t equals = call.arguments.find('=');
  if (equals != std::string::npos) {
    return SetOption(workspace, call.arguments.substr(0, equals), call.arguments.substr(equals + 1));
  }
  Table table("options", {"option", "value", "default", "declared at"});
  table.value_columns = {"value", "default"};
  std::vector<std::string> names;
  for (const auto& [name, option] : workspace.record().options) {
    names.push_back(name);
    if (call.arguments.empty() || call.arguments == name)
      table.rows.push_back({name, option.value, option.fallback, option.source.ToString()});
  }
  if (!call.arguments.empty() && table.rows.empty()) {
    return Refused(call, "the plan has no option '" + call.arguments + "'",
                   names.empty() ? "the plan declares no option" : DidYouMean(call.arguments, names));
  }
  Answer out;
  if (table.rows.empty()) out.notes.emplace_back("the plan declares no option");
  out.tables.push_back(std::move(table));
  return out;
}

Answer RunRank(CommandCall& call) {
  const std::string& text = call.arguments;
  if (text.empty()) {
    const MeshShape& mesh = call.workspace.mesh();
    Table table("rank", {"axis", "coordinate", "size"});
    for (MeshAxis axis : kMeshAxes) {
      if (mesh.size(axis) > 1) {
        table.rows.push_back({ToString(axis), mesh.Coordinate(call.workspace.rank(), axis), mesh.size(axis)});
      }
    }
    return {.tables = {std::move(table)},
            .notes = {"rank " + std::to_string(call.workspace.rank()) + " of " + std::to_string(mesh.world_size())}};
  }
  int64_t rank = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) {
    return Refused(call, "'" + text + "' is not a rank",
                   "a number from 0 to " + std::to_string(call.workspace.mesh().world_size() - 1));
  }
  Answer out;
  out.diagnostics = AtLine(call, call.workspace.SetRank(rank));
  if (!HasErrors(out.diagnostics))
    out.notes.push_back("rank " + text + " of " + std::to_string(call.workspace.mesh().world_size()));
  return out;
}

Answer RunVerify(CommandCall& call) {
  if (std::optional<Answer> refused = NeedCompiled(call)) return *refused;
  if (!call.state.run_moonshard) return Refused(call, ":verify runs moonshard, which cannot be started here");
  const Workspace& workspace = call.workspace;
  std::vector<std::string> words = {"verify", workspace.model()->folder, "--mesh", workspace.mesh().ToString()};
  if (const std::string& program = workspace.model()->program; !program.empty())
    words.insert(words.end(), {"--program", program});
  if (!workspace.plan_name().empty()) words.insert(words.end(), {"--plan", workspace.plan_name()});
  for (const auto& [name, value] : workspace.options()) words.insert(words.end(), {"--option", name + "=" + value});
  if (workspace.isolate()) words.emplace_back("--isolate");
  words.insert(words.end(), call.state.moonshard_arguments.begin(), call.state.moonshard_arguments.end());
  for (std::string& word : Words(call.arguments)) words.push_back(std::move(word));
  const int code = call.state.run_moonshard(words);
  Answer out;
  out.failed = code != 0;
  if (code != 0) out.notes.push_back("moonshard " + Join(words, " ") + ": exit code " + std::to_string(code));
  return out;
}

Answer RunMode(CommandCall& call) {
  if (call.arguments.empty()) {
    return {.notes = {"mode " + OutputModeNames()[static_cast<size_t>(call.state.mode)]}};
  }
  const std::optional<OutputMode> mode = OutputModeFromName(call.arguments);
  if (!mode)
    return Refused(call, "there is no mode '" + call.arguments + "'", DidYouMean(call.arguments, OutputModeNames()));
  call.state.mode = *mode;
  return {};
}

Answer RunQuit(CommandCall&) { return {.quit = true}; }

}  // namespace moonshard
