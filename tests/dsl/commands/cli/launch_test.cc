// The launcher by itself, with a shell in place of the ranks.
#include "dsl/commands/cli/launch.h"

#include <catch2/catch.hpp>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace moonshard::test {
namespace {

int LaunchShell(const std::string& script) {
  const LaunchOptions options = {.executable = "/bin/sh", .arguments = {"-c", script}, .ranks = 2};
  alarm(60);  // ends this test where the launcher waits for ever
  const int code = LaunchRanks(options);
  alarm(0);
  return code;
}

TEST_CASE("ranks are awaited where the parent ignores its children") {
  struct sigaction before = {};
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGCHLD, &ignore, &before);
  CHECK(LaunchShell("exit 0") == 0);
  CHECK(LaunchShell("exit 5") == 5);
  struct sigaction now = {};
  sigaction(SIGCHLD, &before, &now);
  CHECK(now.sa_handler == SIG_IGN);
}

TEST_CASE("a rank gets each variable of the launch once, whatever this process has") {
  const char* const names[] = {"RANK",        "LOCAL_RANK",         "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
                               "MASTER_PORT", "MOONSHARD_TERMINAL", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE"};
  for (const char* name : names) setenv(name, "7", 1);
  // The variables as they came, not as the shell has them.
  const int code = LaunchShell(
      "mine() { tr '\\0' '\\n' < /proc/$$/environ | grep \"^$1=\"; }\n"
      "[ \"$(mine WORLD_SIZE)\" = WORLD_SIZE=2 ] && [ \"$(mine LOCAL_WORLD_SIZE)\" = LOCAL_WORLD_SIZE=2 ] &&\n"
      "[ \"$(mine RANK)\" = \"RANK=$RANK\" ] && [ \"$RANK\" != 7 ] &&\n"
      "[ \"$(mine LOCAL_RANK)\" = \"LOCAL_RANK=$RANK\" ] && [ -z \"$(mine MASTER_PORT)\" ] &&\n"
      "[ -z \"$(mine MASTER_ADDR)\" ] && [ \"$MOONSHARD_TERMINAL\" != 7 ] &&\n"
      "[ -z \"$(mine TORCHELASTIC_USE_AGENT_STORE)\" ]\n");
  for (const char* name : names) unsetenv(name);
  CHECK(code == 0);
}

// Without a step a batch script would take itself for one of the ranks, and wait for the others.
TEST_CASE("in a batch script of SLURM the ranks are started here, in a step of srun they are not") {
  const auto started = [](const std::map<std::string, std::string>& variables) {
    return StartedByLauncher([&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  std::map<std::string, std::string> slurm = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "4711"}};
  CHECK_FALSE(started(slurm));
  slurm["SLURM_STEP_ID"] = "4294967290";
  CHECK_FALSE(started(slurm));
  slurm["SLURM_STEP_ID"] = "0";
  CHECK(started(slurm));
  CHECK(started({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
  CHECK_FALSE(started({{"RANK", "0"}}));
  CHECK_FALSE(started({}));
}

}  // namespace
}  // namespace moonshard::test
