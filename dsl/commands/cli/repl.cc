// `moonshard repl`.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iostream>
#include <memory>

#include "dsl/commands/cli/findings_output.h"
#include "dsl/commands/cli/launch.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/repl/history_file.h"
#include "dsl/commands/repl/reader.h"
#include "dsl/commands/repl/session.h"
#include "dsl/commands/repl/terminal.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr const char* kPrompt = "moonshard> ";
constexpr const char* kMorePrompt = "        .. ";

void Show(const Outcome& outcome) {
  std::cerr << outcome.err << std::flush;
  std::cout << outcome.out << std::flush;
}

// Runs this executable with other arguments and waits for it; its exit code, 1 if a signal ended it.
int RunExecutable(const std::vector<std::string>& words) {
  std::cout << std::flush;
  const std::string executable = SiblingExecutable("moonshard");
  std::vector<std::string> texts = words;
  texts.insert(texts.begin(), executable);
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execv(executable.c_str(), argv.data());
    _exit(kExitFailed);
  }
  if (child < 0) return kExitFailed;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailed;
}

// Reads all lines; whether all succeeded.
bool RunLines(Session& session, LineReader& reader, bool interactive, bool bail) {
  bool good = true;
  while (true) {
    const ReadResult read = reader.Read(session.unfinished() ? kMorePrompt : kPrompt);
    if (read.status == ReadResult::Status::kInterrupted) {
      session.Drop();
      continue;
    }
    if (read.status == ReadResult::Status::kFailed) {
      Show(session.Unreadable(read.line));
      return false;
    }
    const bool end = read.status == ReadResult::Status::kEnd;
    // A script's next line must see what was saved before it.
    if (!interactive && session.watching()) Show(session.CheckFiles());
    const Outcome outcome = end ? session.Finish() : session.Feed(read.line);
    Show(outcome);
    good &= outcome.good;
    if (end || outcome.quit || (bail && !outcome.good)) return good;
  }
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ > STDERR_FILENO) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

int RunTyped(Session& session, const Idle& idle, bool keep_history) {
  TerminalOptions options;
  options.complete = [&](std::string_view line, size_t cursor) { return session.Complete(line, cursor); };
  options.idle = idle;
  if (keep_history) options.history = HistoryFile::DefaultPath();
  std::unique_ptr<LineReader> reader = MakeTerminal(std::move(options));
  if (reader == nullptr) reader = std::make_unique<StreamReader>(STDIN_FILENO, idle, /*show_prompt=*/true);
  std::cout << "moonshard repl: Lua with the builtins of a plan, and commands; :help lists the commands, Ctrl-D ends "
               "the session\n";
  std::cout << Render({Summary(session.workspace())}, OutputMode::kTable) << std::flush;
  RunLines(session, *reader, /*interactive=*/true, /*bail=*/false);
  std::cout << "\n";
  return kExitSuccess;
}

}  // namespace

int RunRepl(const ReplVerb& verb) {
  SessionOptions options;
  options.model = verb.model;
  options.mode = OutputModeFromName(verb.mode).value_or(OutputMode::kTable);
  options.run_moonshard = &RunExecutable;
  options.form = verb.findings_output.form;
  options.color = UsesColor(verb.findings_output.color, STDERR_FILENO);
  options.moonshard_arguments = {"--format", FindingFormName(verb.findings_output.form), "--color",
                                 options.color ? "always" : "never"};
  const bool from_file = !verb.file.empty() && verb.file != "-";
  const bool typed = verb.code.empty() && verb.file.empty() && isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  options.source = !verb.code.empty() ? "-c" : from_file ? verb.file : typed ? "input" : "stdin";
  const Descriptor input(from_file ? open(verb.file.c_str(), O_RDONLY | O_CLOEXEC) : STDIN_FILENO);
  if (input.number() < 0) {
    Diagnostic d = MakeDiagnostic(Finding::kFileNotFound, "cannot read '" + verb.file + "'");
    PrintFindings({d}, verb.findings_output);
    return kExitUsage;
  }
  Session session(options);
  const Outcome opened = session.Open();
  Show(opened);
  if (!session.opened()) return kExitUsage;
  Outcome changed;
  const Idle idle{.wanted = [&] { return session.watching(); },
                  .ready =
                      [&] {
                        changed = session.CheckFiles();
                        return !changed.out.empty() || !changed.err.empty();
                      },
                  .show = [&] { Show(changed); }};
  if (typed) return RunTyped(session, idle, verb.history);
  bool good = true;
  if (!verb.code.empty()) {
    TextReader reader(Join(verb.code, "\n"));
    good = RunLines(session, reader, /*interactive=*/false, verb.bail);
  }
  if (!verb.file.empty() || verb.code.empty()) {
    StreamReader reader(input.number(), idle, /*show_prompt=*/false);
    if (good || !verb.bail) good &= RunLines(session, reader, /*interactive=*/false, verb.bail);
  }
  return !opened.good ? kExitUsage : good ? kExitSuccess : kExitFailed;
}

}  // namespace moonshard
