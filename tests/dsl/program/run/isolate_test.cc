// `--isolate` in the verbs with ranks: every rank evaluates the plan in a child process of its own.
#include <catch2/catch.hpp>

#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;


Outcome RunIsolated(const std::string& verb, const std::string& plan, Words more) {
  Words words = {verb, kModel, "--mesh", "tp=2", "--isolate", "--plan", plan};
  words.insert(words.end(), more.begin(), more.end());
  return RunProgram(MOONSHARD_PROGRAM, words, {}, 120);
}

TEST_CASE("an isolated plan computes what the plan does") {
  const ScratchFolder scratch;
  const std::string input = kModel + "/inputs_1.safetensors";
  Words words = {"--input", input, "--output", scratch / "isolated"};
  const Outcome isolated = RunIsolated("eval", "llama", words);
  INFO(isolated.ToText());
  REQUIRE(isolated.code == 0);
  const Outcome plain = RunProgram(
      MOONSHARD_PROGRAM, {"eval", kModel, "--mesh", "tp=2", "--input", input, "--output", scratch / "plain"}, {}, 120);
  REQUIRE(plain.code == 0);
  CHECK(ReadWholeFile(scratch / "isolated") == ReadWholeFile(scratch / "plain"));
  const Outcome verified = RunIsolated("verify", "llama", {});
  INFO(verified.ToText());
  CHECK(verified.code == 0);
  CHECK_THAT(verified.out, Contains("verified"));
}

TEST_CASE("an isolated plan that passes a limit is an error before any rank works") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("endless.lua", "while true do end\n");
  for (const std::string verb : {"eval", "verify"}) {
    const Outcome done =
        verb == "eval" ? RunIsolated(verb, plan, {"--input", kModel + "/inputs_1.safetensors", "--output", scratch / "out"})
                       : RunIsolated(verb, plan, {});
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK_THAT(done.err, Contains("endless.lua:1: error[MS0109]"));
  }
}

// Beside the launcher, which has looked at the plan before: a rank that somebody else started.
TEST_CASE("a rank isolates its plan itself") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("endless.lua", "while true do end\n");
  const Outcome done = RunProgram(MOONSHARD_RANK_PROGRAM, {"verify", kModel, "--isolate", "--plan", plan}, {}, 120);
  INFO(done.ToText());
  CHECK(done.code == 2);
  CHECK_THAT(done.err, Contains("endless.lua:1: error[MS0109]"));
  const Outcome good = RunProgram(MOONSHARD_RANK_PROGRAM, {"verify", kModel, "--isolate"}, {}, 120);
  INFO(good.ToText());
  CHECK(good.code == 0);
}

}  // namespace
}  // namespace moonshard::test
