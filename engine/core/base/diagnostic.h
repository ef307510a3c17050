// Diagnostic: one report to a user about a plan, a model directory or a group of ranks, with the place in the text,
// what was declared, what is required and a suggested fix. Every stage collects all of its diagnostics before it fails
// (result.h); the program and PlanError only print the diagnostics. finding.h lists the identifiers.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/finding.h"

namespace moonshard {

// A place in a text file. `line` and `column` (in bytes) count from 1; 0 means unknown. `text` is the source line
// without its line end, empty if it is not available. `length` is the number of columns that the caret underlines.
struct SourceSpan {
  std::string file;
  int line = 0;
  int column = 0;
  int length = 0;
  std::string text;

  bool known() const { return !file.empty(); }
  // "plans/llama.lua:12", "plans/llama.lua" if no line is known, "" if no file is known.
  std::string ToString() const;
  bool operator==(const SourceSpan&) const = default;
};

struct Diagnostic {
  Finding finding = Finding::kInternal;
  Severity severity = Severity::kError;
  std::string message;              // one sentence, no full stop, names in single quotes
  SourceSpan where;                 // the line to change; not known() if there is no such line
  std::string path;                 // module, parameter, tensor or file that the report is about; may be empty
  std::string declared;             // what the plan or the file declares; may be empty
  std::string required;             // what would be valid; may be empty
  std::string help;                 // nearest name, legal values, what to do; may be empty
  std::vector<SourceSpan> related;  // other lines that are involved, such as the second rule of a conflict

  // Returns "FILE:LINE: severity[ID]: message", then indented lines for the source line with a caret, path, declared,
  // required, help and related places, without a line end at the end. `color` adds the escape sequences of a terminal.
  // All texts pass through SafeText. In a source line, blanks replace control characters, and only the part around the
  // caret is shown if the line is longer than 160 bytes.
  std::string ToText(bool color = false) const;
};

// Returns a diagnostic with the default severity of the finding.
Diagnostic MakeDiagnostic(Finding finding, std::string message, SourceSpan where = {});

using Diagnostics = std::vector<Diagnostic>;

// Returns an untrusted text in a form that is safe for a terminal or a log: VisibleLines (visible.h) of the first
// `most` bytes, with "... (N bytes)" at the end if the text is longer. An indent follows each line end, so that no line
// of the text looks like a diagnostic.
std::string SafeText(std::string_view text, size_t most = 2000);

bool HasErrors(const Diagnostics& diagnostics);
// Returns the texts of the diagnostics in order, with a line end after each text.
std::string ToText(const Diagnostics& diagnostics, bool color = false);

// The exception that the public C++ functions throw. PlanError has all diagnostics of the stage that failed; what()
// returns the text of these diagnostics.
class PlanError : public std::runtime_error {
 public:
  explicit PlanError(Diagnostics diagnostics);
  const Diagnostics& diagnostics() const { return diagnostics_; }

 private:
  Diagnostics diagnostics_;
};

}  // namespace moonshard
