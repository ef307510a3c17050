// The streams of a process: closed ones, ones that a disk cannot take, files that cannot be made, and signals that the
// parent left ignored.
#include <catch2/catch.hpp>

#include <cstdlib>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// The program run by a shell: `before` its words what the shell does first, `after` them redirections.
Outcome RunInShell(const std::string& before, const std::string& words, const std::string& after) {
  return RunExecutable("/bin/sh", {"-c", before + " exec " + ShellWord(ExecutablePath()) + " " + words + " " + after},
                       {}, 60);
}

const std::string kCheck = "check " + ShellWord(kModel) + " --mesh tp=2 --isolate";

TEST_CASE("an isolated plan under closed streams") {
  for (const char* closed : {"0<&- 2>&-", "0<&- 1>&-", "0<&- 1>&- 2>&-", "2>&-"}) {
    const Outcome done = RunInShell("", kCheck, closed);
    INFO(closed << "\n" << done.ToText());
    CHECK(done.code == 0);
  }
}

TEST_CASE("an isolated plan where the parent ignores its children") {
  const Outcome done = RunInShell("trap '' CHLD;", kCheck, "");
  INFO(done.ToText());
  CHECK_FALSE(done.timed_out);
  CHECK(done.code == 0);
}

TEST_CASE("output that a disk cannot take is an error") {
  for (const std::string& words :
       {"explain " + ShellWord(kModel) + " --mesh tp=2", "check " + ShellWord(kModel) + " --mesh tp=2 --format json",
        std::string("definitions"), std::string("--help"), std::string("man")}) {
    const Outcome done = RunInShell("", words, "> /dev/full");
    INFO(words << "\n" << done.ToText());
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Contains("MS0409") && Contains("cannot write to stdout: "));
  }
  // What is wrong with the words stays the answer.
  CHECK(RunInShell("", "explain /nowhere", "> /dev/full").code == 2);
}

TEST_CASE("a file name that cannot be is the user's, not a defect") {
  const ScratchFolder scratch;
  const std::string name = scratch / std::string(300, 'n');
  const std::vector<Words> rows = {
      {"suggest", kModel, "-o", name},
      {"explain", kModel, "--html", name},
      {"eval", kModel, "--input", kModel + "/inputs_1.safetensors", "--output", name},
      {"repl", kModel, "-c", ":save " + name},
  };
  for (const Words& words : rows) {
    const Outcome done = Run(words);
    INFO(words.front() << "\n" << done.ToText());
    CHECK(done.code == 1);
    CHECK_THAT(done.out + done.err, Contains("MS0409") && Contains("File name too long") && !Contains("defect"));
  }
  const Outcome load = Run({"repl", kModel, "-c", ":load " + name});
  INFO(load.ToText());
  CHECK_THAT(load.out + load.err, !Contains("defect"));
}

TEST_CASE("a report goes down a pipe by the name of stdout") {
  const Outcome done =
      RunInShell("", "explain " + ShellWord(kModel) + " --mesh tp=2 --html /dev/stdout", "| tail -c 8");
  INFO(done.ToText());
  CHECK_THAT(done.out, Contains("</html>"));
  CHECK_THAT(done.err, !Contains("MS0409"));
}

}  // namespace
}  // namespace moonshard::test
