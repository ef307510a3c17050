// The commands of plans/README.md for a model without a plan, run as printed. APPROVE=1 writes their output again.
#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/core/base/text.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;

const std::string kPage = SourcePath("plans/README.md");
constexpr std::string_view kPrompt = "$ ";

// A directory that looks as the checkout does to who has built it.
void MakeCheckout(const ScratchFolder& scratch) {
  fs::create_directory(scratch / "build");
  fs::create_symlink(ExecutablePath(), scratch / "build/moonshard");
  fs::create_symlink(SourcePath("tests"), scratch / "tests");
}

TEST_CASE("the commands for a model without a plan print what the page of the plans shows") {
  const std::string page = ReadWholeFile(kPage);
  const std::string open = "```console\n";
  const size_t begin = page.find(open) + open.size();
  const size_t end = page.find("```", begin);
  REQUIRE(begin > open.size());
  ScratchFolder scratch;
  MakeCheckout(scratch);
  std::string replayed;
  int commands = 0;
  for (const std::string& line : Split(page.substr(begin, end - begin), '\n')) {
    if (!line.starts_with(kPrompt)) continue;
    ++commands;
    const std::string command = "cd " + ShellWord(scratch.path()) + " && { " + line.substr(kPrompt.size()) + "; } 2>&1";
    const Outcome done = RunExecutable("/bin/sh", {"-c", command});
    INFO(line << "\n" << done.ToText());
    CHECK(done.code == 0);
    replayed += line + "\n" + done.out;
  }
  CHECK(commands == 5);
  if (Approving()) return WriteGolden(kPage, page.substr(0, begin) + replayed + page.substr(end));
  CHECK(replayed == page.substr(begin, end - begin));
}

}  // namespace
}  // namespace moonshard::test
