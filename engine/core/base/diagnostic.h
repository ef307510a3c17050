// Diagnostic: one report to a user about a plan, a model directory or a group of ranks, with the place, what was
// declared, what is required and the nearest thing that works. Every stage collects all of its diagnostics before
// it gives up (result.h); the program and PlanError only print them. Identifiers live in finding.h.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/finding.h"

namespace moonshard {

// A place in a text file. line and column count from 1; 0 means unknown. `text` is the source line without its line
// end, where it was available; `length` is how many columns the caret underlines.
struct SourceSpan {
  std::string file;
  int line = 0;
  int column = 0;
  int length = 0;
  std::string text;

  bool known() const { return !file.empty(); }
  // "plans/llama.lua:12", "plans/llama.lua" where no line is known, "" where nothing is.
  std::string ToString() const;
  bool operator==(const SourceSpan&) const = default;
};

struct Diagnostic {
  Finding finding = Finding::kInternal;
  Severity severity = Severity::kError;
  std::string message;              // one sentence, no full stop, names in single quotes
  SourceSpan where;                 // the line to change, where there is one
  std::string path;                 // module, parameter, tensor or file concerned; may be empty
  std::string declared;             // what the plan or the file declares; may be empty
  std::string required;             // what would be valid; may be empty
  std::string help;                 // nearest name, legal values, what to do; may be empty
  std::vector<SourceSpan> related;  // other lines that take part (the second rule of a conflict)

  // FILE:LINE: severity[ID]: message, then indented lines for path, excerpt with caret, declared, required, help and
  // related places. Ends without a line end. `color` adds the escape sequences of a terminal. What a plan or a model's
  // files brought into it goes through SafeText; a source line is shown without its control characters, and only the
  // part around the caret where it is long.
  std::string ToText(bool color = false) const;
};

// A diagnostic with the finding's own severity.
Diagnostic MakeDiagnostic(Finding finding, std::string message, SourceSpan where = {});

using Diagnostics = std::vector<Diagnostic>;

// An untrusted text for a terminal or a log: VisibleLines (visible.h), and of more than `most` bytes only the first.
// Line ends are followed by an indent, so that no line of it looks like a diagnostic.
std::string SafeText(std::string_view text, size_t most = 2000);

bool HasErrors(const Diagnostics& diagnostics);
// Each diagnostic's text in order, one after the other, separated by line ends; ends with one unless empty.
std::string ToText(const Diagnostics& diagnostics, bool color = false);

// What the public C++ functions throw: all diagnostics of the stage that failed; what() is their text.
class PlanError : public std::runtime_error {
 public:
  explicit PlanError(Diagnostics diagnostics);
  const Diagnostics& diagnostics() const { return diagnostics_; }

 private:
  Diagnostics diagnostics_;
};

}  // namespace moonshard
