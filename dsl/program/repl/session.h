// Session: the REPL without a terminal: takes lines, answers texts. What a user types at the prompt, what a script holds and
// what a test feeds go the same way.
// Stages before: dsl/planning/resolve_model, dsl/language/eval. Stage after: repl.h, which reads the lines and prints.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/program/repl/command.h"
#include "dsl/program/repl/completion.h"
#include "dsl/program/repl/watch.h"
#include "engine/core/findings/forms.h"

namespace moonshard {

struct SessionOptions {
  ModelOptions model;  // an empty directory: no model
  OutputMode mode = OutputMode::kTable;
  std::string source = "input";            // how diagnostics call the lines: a script's file name
  FindingForm form = FindingForm::kText;   // of diagnostics; in the others notes are left out
  bool color = false;                      // of diagnostics as text
  std::vector<std::string> program_words;  // options that a program gets which a command starts: --color never
  std::function<int(const std::vector<std::string>&)> run_program;  // see CommandState
};

// What came of a line.
struct Outcome {
  std::string out;  // data
  std::string err;  // diagnostics, in a form of json or sarif as one document, and notes
  bool good = true;
  bool unfinished = false;  // the line begins something that further lines must end
  bool quit = false;
};

class Session {
 public:
  explicit Session(SessionOptions options);

  // Loads the model and resolves the plan. Not good where the model, the mesh or the plan has errors. With a bad plan the
  // session goes on; where opened() is false there is no model, or no mesh, as it was asked for.
  Outcome Open();
  bool opened() const { return opened_; }
  // The next line, without its line end: a command, Lua, or more of an unfinished text.
  Outcome Feed(const std::string& line);
  // The input ends: an unfinished text is run as it stands, which says what is missing.
  Outcome Finish();
  // Forgets an unfinished text.
  void Drop() { pending_.clear(); }
  // With :watch on, reloads where one of the plan's files was saved; else an empty outcome.
  Outcome CheckFiles();

  // What can stand at `cursor` of a line in place of the word there.
  Completion Complete(std::string_view line, size_t cursor);

  bool unfinished() const { return !pending_.empty(); }
  bool watching() const { return state_.watch; }
  Workspace& workspace() { return workspace_; }

 private:
  Outcome RunText(const std::string& text, ChunkKind kind);
  Outcome RunCommand(const std::string& line);
  // The command that is meant by "help", "?", "quit" and "exit", as they are typed at other prompts; "" for any other line,
  // and where a line has given the word a meaning.
  std::string AsCommand(const std::string& line);
  // `text`: the line, to be kept where it was good; "" for none.
  Outcome Finished(Answer answer, const std::string& text);
  void TakeInputs();
  // As SessionOptions::form says; nothing for nothing.
  std::string Written(const Diagnostics& diagnostics) const;

  SessionOptions options_;
  Workspace workspace_;
  CommandState state_;
  LineRunner runner_;
  FileWatch watch_;
  std::string pending_;
  bool opened_ = false;
  int line_ = 0;          // of the last line that was fed
  int pending_line_ = 1;  // of the first line of `pending_`
};

}  // namespace moonshard
