// Lines of the REPL on a small model, with completion at every end of a word. A session goes on whatever was typed.
// :save and :verify, which write a file and start a program, are left out, and what names a file reads none.
#include <memory>

#include "dsl/commands/repl/command.h"
#include "dsl/commands/repl/session.h"
#include "engine/core/base/text.h"
#include "tests/dsl/inputs.h"
#include "tests/fuzz/target.h"

namespace moonshard {
namespace {

bool Harmless(const std::string& line) {
  const size_t colon = line.find_first_not_of(" \t");
  if (colon == std::string::npos || line[colon] != ':') return true;
  const CommandInfo* command = FindCommand(line.substr(colon, line.find_first_of(" \t", colon) - colon));
  if (command == nullptr) return true;
  return command->run != &RunSave && command->run != &RunVerify && line.find('/') == std::string::npos;
}

}  // namespace
}  // namespace moonshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  constexpr size_t kMostLines = 6;
  static const auto tree = std::make_shared<const ModuleTree>(SmallLlama());
  static const JsonValue config = LlamaInputs(2).config;
  Session session({});
  session.workspace().SetModel("fuzz", config, tree);
  session.Open();
  size_t lines = 0;
  const std::string_view typed = fuzz::TextOf(data, size);
  for (const std::string& line : Split(typed, '\n')) {
    if (++lines > kMostLines) break;
    if (!Harmless(line)) continue;
    const Completion completion = session.Complete(line, line.size() / 2);
    session.Complete(line, line.size());
    const Outcome outcome = session.Feed(line);
    fuzz::Require((outcome.out + outcome.err).find('\x1b') == std::string::npos, "an escape byte in an answer");
    // Messages quote what was typed.
    const bool defect = outcome.err.find("error[MS0901]") != std::string::npos && typed.find("MS0901") == typed.npos;
    fuzz::Require(!defect, "a defect was reported: " + outcome.err);
    if (outcome.quit) break;
  }
  session.Finish();
  fuzz::Require(session.Feed("1 + 1").out.find('2') != std::string::npos, "the session is broken");
  return 0;
}
