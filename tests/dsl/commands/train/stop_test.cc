// A rank that is asked to stop while it waits for a peer: it leaves, and does not wait for the peer.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>

#include "tests/dsl/commands/train/runs.h"
#include "tests/support/free_port.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

std::unique_ptr<Process> StartRank(int rank, const std::string& port, const Words& words) {
  const std::string number = std::to_string(rank);
  return std::make_unique<Process>(RankExecutablePath(), words,
                                   Words{"RANK=" + number, "LOCAL_RANK=" + number, "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
                                         "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port});
}

bool WaitUntil(const std::function<bool()>& holds) {
  for (int tries = 0; tries < 600; ++tries) {
    if (holds()) return true;
    usleep(100'000);
  }
  return false;
}

TEST_CASE("a rank that waits for a peer to join is ended by the first signal") {
  const int signal = GENERATE(SIGTERM, SIGINT, SIGUSR1);
  const ScratchFolder folder;
  const auto rank = StartRank(0, FreePort(), TrainWords(folder, {"--mesh", "tp=2", "--steps", "5"}));
  sleep(3);
  kill(rank->pid(), signal);
  const Outcome done = rank->Wait(20);
  INFO(done.ToText());
  CHECK_FALSE(done.timed_out);
  CHECK((done.code == 128 + signal || done.signal == signal));
}

TEST_CASE("a rank whose peer hangs in a step ends after --grace, with what was saved before") {
  const ScratchFolder folder;
  const std::string port = FreePort();
  const std::string log = folder / "log.jsonl";
  const Words words = TrainWords(folder, {"--mesh", "tp=2", "--steps", "100000", "--log", log, "--save", folder / "run",
                                          "--save-every", "5", "--grace", "2"});
  const auto zero = StartRank(0, port, words);
  const auto one = StartRank(1, port, words);
  REQUIRE(WaitUntil([&] { return std::filesystem::exists(log) && LogLines(log).size() > 12; }));
  kill(one->pid(), SIGSTOP);
  sleep(1);
  kill(zero->pid(), SIGTERM);
  const Outcome done = zero->Wait(30);
  kill(one->pid(), SIGKILL);
  INFO(done.ToText());
  CHECK_FALSE(done.timed_out);
  CHECK(done.code == 128 + SIGTERM);
  CHECK_THAT(done.err, Contains("did not end within --grace"));
  const Outcome resumed = RunTraining(TrainWords(folder, {"--mesh", "tp=2", "--steps", "16", "--save", folder / "run",
                                                          "--resume", "--log", folder / "more.jsonl"}));
  INFO(resumed.ToText());
  CHECK(resumed.code == 0);
}

TEST_CASE("SIGUSR1 saves and stops as SIGTERM does") {
  const ScratchFolder folder;
  const std::string port = FreePort();
  const std::string log = folder / "log.jsonl";
  const Words words =
      TrainWords(folder, {"--mesh", "tp=2", "--steps", "100000", "--log", log, "--save", folder / "run"});
  const auto zero = StartRank(0, port, words);
  const auto one = StartRank(1, port, words);
  REQUIRE(WaitUntil([&] { return std::filesystem::exists(log) && LogLines(log).size() > 2; }));
  kill(one->pid(), SIGUSR1);
  const Outcome first = zero->Wait(60);
  const Outcome second = one->Wait(60);
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK(first.code == 128 + SIGUSR1);
  CHECK(second.code == 128 + SIGUSR1);
  CHECK(std::filesystem::exists(folder / "run"));
}

// The batch script of the guide, with other programs for srun and scontrol.
TEST_CASE("the batch script of the guide requeues the job where a signal stopped it, and keeps the exit code") {
  const std::string guide = ReadWholeFile(SourcePath("dsl/commands/train/README.md"));
  const size_t begin = guide.find("#!/bin/bash\n");
  REQUIRE(begin != std::string::npos);
  const std::string script = guide.substr(begin, guide.find("```", begin) - begin);
  CHECK_THAT(script, Contains("#SBATCH") && Contains("--signal=USR1@60") && Contains("--requeue"));
  const auto [code, requeued] = GENERATE(table<int, bool>({
      {0, false},
      {1, false},
      {128 + SIGUSR1, true},  // the time of the job is over
      {128 + SIGTERM, true},  // another job takes its place
      {128 + SIGINT, false},
  }));
  CAPTURE(code);
  const ScratchFolder folder;
  const auto program = [&](const std::string& name, const std::string& text) {
    std::filesystem::permissions(folder.Write(name, "#!/bin/sh\n" + text), std::filesystem::perms::owner_all);
  };
  program("srun", "exit " + std::to_string(code) + "\n");
  program("scontrol", "echo \"$@\"\n");
  const Outcome done = RunExecutable("/bin/bash", {folder.Write("job.sh", script)},
                                     {"SLURM_JOB_ID=4711", "PATH=" + folder / "" + ":/usr/bin:/bin"});
  INFO(done.ToText());
  CHECK(done.code == code);
  CHECK(done.out == (requeued ? "requeue 4711\n" : ""));
  CHECK(done.err.empty());
}

}  // namespace
}  // namespace moonshard::test
