// Session: the REPL without a terminal: runs lines and returns their output as text. Interactive lines, scripts and
// tests use the same functions. Stages before: dsl/planning/resolve_model, dsl/language/eval. Stage after:
// dsl/commands/cli/repl.cc, which reads the lines and prints.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/commands/repl/command.h"
#include "dsl/commands/repl/completion.h"
#include "dsl/commands/repl/watch.h"
#include "engine/core/findings/forms.h"

namespace moonshard {

struct SessionOptions {
  ModelOptions model;  // an empty directory: no model
  OutputMode mode = OutputMode::kTable;
  std::string source = "input";                  // the file name in diagnostics
  FindingForm form = FindingForm::kText;         // of diagnostics; the other forms omit notes
  bool color = false;                            // of diagnostics as text
  std::vector<std::string> moonshard_arguments;  // added when a command starts moonshard: --color never
  std::function<int(const std::vector<std::string>&)> run_moonshard;  // see CommandState
};

// The result of a line.
struct Outcome {
  std::string out;  // data
  std::string err;  // notes and diagnostics; in the forms json and sarif, one document
  bool good = true;
  bool unfinished = false;  // the text needs more lines
  bool quit = false;
};

class Session {
 public:
  explicit Session(SessionOptions options);

  // Loads the model and resolves the plan. Outcome::good is false if the model, the mesh or the plan has errors. If
  // only the plan has errors, the session can run lines. If opened() is false after the call, the requested model or
  // mesh could not be loaded.
  Outcome Open();
  bool opened() const { return opened_; }
  // Runs the next line, without its line end: a command, Lua, or the continuation of an unfinished text.
  Outcome Feed(const std::string& line);
  // Ends the input. An unfinished text is evaluated as it is, which reports what is missing.
  Outcome Finish();
  // Returns an error (kFileUnreadable): the source of the lines cannot be read further, for the reason `why`.
  Outcome Unreadable(const std::string& why) const;
  // Drops an unfinished text.
  void Drop() { pending_.clear(); }
  // With :watch on, reloads the plan if one of its files was saved; else returns an empty outcome.
  Outcome CheckFiles();

  // The candidates at `cursor` of a line.
  Completion Complete(std::string_view line, size_t cursor);

  bool unfinished() const { return !pending_.empty(); }
  bool watching() const { return state_.watch; }
  Workspace& workspace() { return workspace_; }

 private:
  Outcome RunText(const std::string& text, ChunkKind kind);
  Outcome RunCommand(const std::string& line);
  // Returns the command for "help", "?", "quit" and "exit", which other prompts use; "" for any other line, and for a
  // name that a line has assigned.
  std::string AsCommand(const std::string& line);
  // Makes the outcome of an answer. `text`: the line, which :save keeps if it succeeded; "" for none.
  Outcome Finished(Answer answer, const std::string& text);
  void TakeInputs();
  // The diagnostics in the form of SessionOptions::form; "" for none.
  std::string Written(const Diagnostics& diagnostics) const;

  SessionOptions options_;
  Workspace workspace_;
  CommandState state_;
  LineRunner runner_;
  FileWatch watch_;
  std::string pending_;
  static constexpr size_t kMostPendingLines = 2000;
  size_t pending_lines_ = 0;
  bool opened_ = false;
  int line_ = 0;          // of the last line that was fed
  int pending_line_ = 1;  // of the first line of `pending_`
};

}  // namespace moonshard
