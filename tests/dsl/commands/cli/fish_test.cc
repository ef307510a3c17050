// What fish offers with the script that `moonshard completion fish` prints. Skipped, and said so, where there is no
// fish.
#include <catch2/catch.hpp>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/skip.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

TEST_CASE("fish completes verbs, options, values, plans and files") {
  if (RunExecutable("/bin/sh", {"-c", "command -v fish"}).code != 0) {
    Skip("no fish in the PATH");
    return;
  }
  const ScratchFolder scratch;
  const std::string script =
      scratch.Write("moonshard.fish", RunExecutable(ExecutablePath(), {"completion", "fish"}).out);
  // Each candidate is "word<tab>what it is".
  const auto offered = [&](const std::string& line) {
    const Outcome done = RunExecutable(
        "/bin/sh", {"-c", "exec fish -N -c 'source $argv[1]; complete -C $argv[2]' \"$0\" \"$1\"", script, line},
        {"HOME=" + scratch.path(), "LC_ALL=C"});  // of a locale that is not installed shells complain on stderr
    INFO(done.ToText());
    CHECK(done.code == 0);
    CHECK(done.err.empty());
    return done.out;
  };
  const std::string verbs = offered("moonshard expl");
  CHECK_THAT(verbs, Contains("explain\twhat a plan does to a model") && Contains("explain-finding\t"));
  CHECK_THAT(verbs, !Contains("check"));
  CHECK_THAT(offered("moonshard explain --ran"), Catch::StartsWith("--rank\t"));
  CHECK_THAT(offered("moonshard check --plan qwen3_m"), Catch::StartsWith("qwen3_moe\t"));
  CHECK_THAT(offered("moonshard eval model --dtype b"), Catch::StartsWith("bfloat16\t"));
  CHECK_THAT(offered("moonshard repl -c 1 --mode c"), Catch::StartsWith("csv\t"));
  CHECK_THAT(offered("moonshard explain-finding shards-not-m"), Catch::StartsWith("shards-not-made"));
  CHECK_THAT(offered("moonshard check model --mesh t"), Catch::StartsWith("tp="));
  CHECK_THAT(offered("moonshard check model --mesh tp=2,dp_s"), Catch::StartsWith("tp=2,dp_shard="));
  CHECK(offered("moonshard check model --option ").empty());
  CHECK_THAT(offered("moonshard completion z"), Catch::StartsWith("zsh"));
  CHECK_THAT(offered("moonshard check " + ShellWord(scratch / "moon")), Contains("moonshard.fish"));
  CHECK_THAT(offered("moonshard check --html"), !Contains("--html"));  // an option of another verb
}

}  // namespace
}  // namespace moonshard::test
