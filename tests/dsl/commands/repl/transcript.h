// A script of the REPL as a transcript: every line as it is typed, then what it answers; what goes to stderr behind "!
// ".
#pragma once

#include <string>

#include "dsl/commands/repl/session.h"
#include "engine/core/base/text.h"

namespace moonshard::test {

inline std::string Marked(const std::string& text, const char* mark) {
  std::string out;
  for (const std::string& line : Split(text, '\n')) out += mark + line + "\n";
  if (text.empty() || text.ends_with('\n')) out.erase(out.size() - std::string(mark).size() - 1);
  return out;
}

inline std::string TextOf(const moonshard::Outcome& outcome) {
  return (outcome.err.empty() ? "" : Marked(outcome.err, "! ")) + outcome.out;
}

// Feeds the lines and ends the input.
inline std::string Transcript(Session& session, const std::string& script) {
  std::string out;
  bool unfinished = false;
  for (const std::string& line : Split(script, '\n')) {
    if (line.empty()) continue;
    out += (unfinished ? ".. " : "> ") + line + "\n";
    const moonshard::Outcome outcome = session.Feed(line);
    unfinished = outcome.unfinished;
    out += TextOf(outcome);
    if (!outcome.good) out += "(failed)\n";
    if (outcome.quit) return out + "(quit)\n";
  }
  const moonshard::Outcome end = session.Finish();
  return out + TextOf(end) + (end.good ? "" : "(failed)\n");
}

}  // namespace moonshard::test
