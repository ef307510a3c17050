// A line is a command if it begins with a colon, and Lua otherwise. Lua text is collected until it is complete: the
// parser decides, so a table or a function may take many lines without a sign for continuation. Inside of such a text a
// colon has no meaning as a command, because it may begin a line of Lua ("  :upper()").
// All results go through Finished: it renders them, gives changed inputs to the runner and to the file watch, and keeps
// lines without an error for :save, so that a saved session runs without errors.
#include "dsl/commands/repl/session.h"

#include <algorithm>
#include <filesystem>

#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

}  // namespace

Session::Session(SessionOptions options) : options_(std::move(options)), runner_({}) {
  state_.mode = options_.mode;
  state_.run_moonshard = options_.run_moonshard;
  state_.moonshard_arguments = options_.moonshard_arguments;
}

std::string Session::Written(const Diagnostics& diagnostics) const {
  return diagnostics.empty() ? "" : WriteFindings(diagnostics, options_.form, options_.color);
}

void Session::TakeInputs() {
  const PlanInputs inputs = workspace_.Inputs();
  LineInputs lines;
  lines.config = inputs.config;
  lines.mesh = inputs.mesh;
  lines.options = inputs.options;
  if (workspace_.model() != nullptr) lines.model = workspace_.model()->tree;
  const std::string& plan = workspace_.plan_name();
  const bool file = plan.ends_with(".lua") || plan.find('/') != std::string::npos;
  if (file && !plan.starts_with("hf:")) {
    lines.folder = std::filesystem::path(plan).parent_path().string();
    if (lines.folder.empty()) lines.folder = ".";
  }
  runner_.SetInputs(std::move(lines));
  watch_.Follow(workspace_.record().files);
}

Outcome Session::Open() {
  Diagnostics problems = workspace_.SetMesh(options_.model.mesh);
  workspace_.SetPlan(options_.model.plan);
  workspace_.SetIsolate(options_.model.isolate);
  for (const auto& [name, value] : options_.model.options) workspace_.SetOption(name, value);
  if (!options_.model.model.empty()) {
    const Diagnostics more = workspace_.OpenModel(options_.model.model, options_.model.program);
    problems.insert(problems.end(), more.begin(), more.end());
  }
  opened_ = !HasErrors(problems);
  if (opened_) {
    workspace_.Resolve();
    const Diagnostics& more = workspace_.resolution().diagnostics;
    problems.insert(problems.end(), more.begin(), more.end());
  }
  TakeInputs();
  Outcome out;
  out.err = Written(problems);
  out.good = !HasErrors(problems);
  return out;
}

Outcome Session::Feed(const std::string& line) {
  ++line_;
  if (pending_.empty()) {
    const std::string trimmed = Trimmed(line);
    const bool comment = trimmed.starts_with("--") && !trimmed.starts_with("--[");
    if (trimmed.empty() || comment) return {};
    if (trimmed[0] == ':') return RunCommand(trimmed);
    if (const std::string command = AsCommand(trimmed); !command.empty()) return RunCommand(command);
    pending_line_ = line_;
    pending_ = line;
    pending_lines_ = 1;
  } else {
    pending_ += "\n" + line;
    // Each line is read with all before it.
    if (++pending_lines_ > kMostPendingLines) {
      pending_.clear();
      Diagnostic d = MakeDiagnostic(Finding::kScriptLimit,
                                    "the input is not complete after " + std::to_string(kMostPendingLines) + " lines",
                                    {options_.source, pending_line_, 0, 0, ""});
      d.help = "write the lines to a file, and :load the file";
      return Finished({.diagnostics = {std::move(d)}}, "");
    }
  }
  const ChunkKind kind = runner_.KindOf(pending_);
  if (kind == ChunkKind::kUnfinished) return {.unfinished = true};
  return RunText(std::exchange(pending_, ""), kind);
}

Outcome Session::Finish() {
  if (pending_.empty()) return {};
  const std::string text = std::exchange(pending_, "");
  Diagnostics why = runner_.Run(text, ChunkKind::kInvalid, {options_.source, pending_line_, ""}).diagnostics();
  Check(!why.empty(), "an unfinished text ran");
  Diagnostic d = std::move(why.front());
  if (d.message.ends_with("near <eof>")) {
    d.message = "unfinished: " + d.message;
  } else {  // read as statements, an expression is wrong at its beginning
    d = MakeDiagnostic(Finding::kSyntax, "unfinished: the input ends within an expression",
                       {options_.source, pending_line_, 0, 0, text.substr(0, text.find('\n'))});
  }
  return Finished({.diagnostics = {std::move(d)}}, "");
}

Outcome Session::Unreadable(const std::string& why) const {
  Diagnostic d = MakeDiagnostic(Finding::kFileUnreadable, "cannot read '" + options_.source + "': " + why);
  d.path = options_.source;
  Outcome out;
  out.err = Written({std::move(d)});
  out.good = false;
  return out;
}

std::string Session::AsCommand(const std::string& line) {
  const std::string word = line.substr(0, line.find_first_of(" \t"));
  const bool alone = word == line;
  const std::string command = word == "help" || word == "?"                 ? ":help"
                              : alone && (word == "quit" || word == "exit") ? ":quit"
                                                                            : "";
  const std::vector<std::string> names = runner_.Names();
  if (command.empty() || std::ranges::find(names, word) != names.end()) return "";
  return command + line.substr(word.size());
}

Outcome Session::RunText(const std::string& text, ChunkKind kind) {
  const Result<std::vector<JsonValue>> result = runner_.Run(text, kind, {options_.source, pending_line_, ""});
  Answer answer{.diagnostics = result.diagnostics()};
  const std::string word = ":" + text.substr(0, text.find_first_of(" \t\n"));
  const bool command = std::ranges::any_of(AllCommands(), [&](const CommandInfo& info) { return word == info.name; });
  if (!result.ok() && command) answer.notes.push_back("a command begins with a colon: " + word);
  Outcome out = Finished(std::move(answer), text);
  if (!result.ok()) return out;
  const bool alone = result.value().size() == 1;
  for (const JsonValue& value : result.value()) {
    if (value.is_null() && alone && state_.mode != OutputMode::kJson) continue;  // as Lua: nothing is nothing to show
    out.out += RenderValue(value, state_.mode);
  }
  return out;
}

Outcome Session::RunCommand(const std::string& line) {
  const size_t blank = line.find_first_of(" \t");
  const std::string name = line.substr(0, blank);
  CommandCall call{workspace_,
                   runner_,
                   state_,
                   blank == std::string::npos ? "" : Trimmed(line.substr(blank)),
                   {options_.source, line_, line}};
  const CommandInfo* command = FindCommand(name);
  if (command != nullptr && std::string_view(command->arguments).empty() && !call.arguments.empty()) {
    return Finished(Refused(call, std::string(command->name) + " takes no argument"), line);
  }
  if (command != nullptr) return Finished(command->run(call), line);
  std::vector<std::string> names;
  std::vector<std::string> beginning;
  for (const CommandInfo& info : AllCommands()) {
    names.emplace_back(info.name);
    if (name.size() > 1 && names.back().starts_with(name)) beginning.push_back(names.back());
  }
  if (!beginning.empty()) {
    return Finished(Refused(call, "more than one command begins with '" + name + "'", Join(beginning, ", ")), line);
  }
  const std::string nearest = NearestName(name, names);
  return Finished(Refused(call, "there is no command '" + name + "'",
                          nearest.empty() ? ":help lists them" : "did you mean '" + nearest + "'?"),
                  line);
}

Outcome Session::Finished(Answer answer, const std::string& text) {
  if (answer.changed) TakeInputs();
  Outcome out;
  const bool page = state_.mode == OutputMode::kTable && !answer.text.empty();
  out.out = page ? answer.text : Render(answer.tables, state_.mode);
  out.err = Written(answer.diagnostics);
  if (const std::string notice = runner_.TakeNotice(); !notice.empty()) answer.notes.push_back(notice);
  if (options_.form == FindingForm::kText) {
    for (const std::string& note : answer.notes) out.err += Visible(note) + "\n";
  }
  out.good = !answer.failed && !HasErrors(answer.diagnostics);
  out.quit = answer.quit;
  const bool keep =
      out.good && !text.empty() && !answer.quit && !text.starts_with(":save") && !text.starts_with(":help");
  if (keep) state_.good_lines.push_back(text);
  return out;
}

Outcome Session::CheckFiles() {
  if (!state_.watch || !watch_.Changed()) return {};
  Outcome out = Finished(ResolveAgain(workspace_), "");
  if (options_.form == FindingForm::kText) out.err = "reloaded\n" + out.err;
  return out;
}

Completion Session::Complete(std::string_view line, size_t cursor) {
  const std::string text = pending_.empty() ? std::string(line) : pending_ + "\n" + std::string(line);
  const size_t offset = text.size() - line.size();
  Completion out = CompleteLine(text, offset + cursor, {workspace_, runner_, !pending_.empty()});
  out.begin = out.begin > offset ? out.begin - offset : 0;
  return out;
}

}  // namespace moonshard
