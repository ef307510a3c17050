// `:verify` in the REPL: the numbers of real ranks.
#include <catch2/catch.hpp>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

TEST_CASE(":verify starts as many ranks as the mesh has, with the session's plan, mesh and options") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("plan.lua", "return plan { extends \"llama\" }\n");
  // On another mesh than the one the session began with.
  Process repl(ExecutablePath(), {"repl", kModel, "--plan", plan, "-c", ":mesh tp=2", "-c",
                                  ":option sequence_parallel=true", "-c", ":verify --tokens 1,7", "-c", "6 * 7"});
  // The words of a command line end with a zero byte. No other test runs ranks of this plan.
  const std::string words = plan + '\0' + "--option" + '\0' + "sequence_parallel=true";
  CHECK(WaitForProcesses("moonshard-run", words, 2, 30).size() == 2);
  const Outcome done = repl.Wait(120);
  INFO(done.ToText());
  CHECK(done.code == 0);
  CHECK_THAT(done.out, Contains("on tp=2: verified") && Contains("largest difference") && Catch::EndsWith("\n42\n"));
}

TEST_CASE(":verify names the planted fault, as a finding in the session's form, and the line has failed") {
  const Outcome done = RunExecutable(ExecutablePath(),
                                     {"repl", kModel, "--mesh", "tp=2", "--format", "json", "--plan",
                                      kPlanted + "dropped_all_reduce.lua", "-c", ":verify"},
                                     {}, 120);
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("\"id\": \"MS0510\"") && Contains("model.layers.1.self_attn.o_proj"));
  CHECK_THAT(done.out, !Contains("verified"));
}

}  // namespace
}  // namespace moonshard::test
