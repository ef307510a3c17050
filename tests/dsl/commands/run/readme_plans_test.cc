// The complete plans of README.md and dsl/README.md: `check` finds no error in them for a Llama, and they compute what
// the model alone computes.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// The Lua blocks that are plans by themselves: with a version of the language, or on top of a shipped plan. The others
// show a part of a plan, for modules that no Llama has.
std::vector<std::string> CompletePlans(const std::string& page) {
  const std::string text = ReadWholeFile(SourcePath() + "/" + page);
  const std::string open = "```lua\n";
  std::vector<std::string> out;
  for (size_t at = 0; (at = text.find(open, at)) != std::string::npos;) {
    at += open.size();
    const std::string block = text.substr(at, text.find("```", at) - at);
    if (block.find("api = 1") != std::string::npos || block.find("extends ") != std::string::npos) out.push_back(block);
  }
  return out;
}

TEST_CASE("the complete plans of the pages pass check and verify") {
  const ScratchFolder folder;
  size_t count = 0;
  for (const char* page : {"README.md", "dsl/README.md"}) {
    for (const std::string& text : CompletePlans(page)) {
      ++count;
      const std::string plan = folder.Write("plan_" + std::to_string(count) + ".lua", text);
      const bool options = text.find("sequence_parallel = ") != std::string::npos;
      for (const char* option : {"sequence_parallel=false", "sequence_parallel=true"}) {
        if (!options && option != std::string("sequence_parallel=false")) continue;
        Words words = {"check", kModel, "--mesh", "tp=2", "--plan", plan};
        if (options) words.insert(words.end(), {"--option", option});
        INFO(page << " with " << option << ":\n" << text);
        const Outcome checked = Run(words);
        INFO(checked.ToText());
        CHECK(checked.code == 0);
        if (text.find("lenient") != std::string::npos) continue;  // it shards what a Llama has in part
        words[0] = "verify";
        const Outcome verified = Run(words);
        INFO(verified.ToText());
        CHECK(verified.code == 0);
        CHECK_THAT(verified.out, Contains(": verified"));
      }
    }
  }
  CHECK(count == 10);
}

}  // namespace
}  // namespace moonshard::test
