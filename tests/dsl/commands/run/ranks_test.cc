// Ranks that other launchers start, that disagree, that die and that never come: everybody is gone in seconds, the
// cause is said, nothing is left behind.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>

#include "tests/support/free_port.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kRecorded = kModel + "/inputs_1.safetensors";
constexpr double kSeconds = 30;  // for ends that take one or two on an idle machine

Words EvalWords(const std::string& input, const std::string& out, const Words& more = {}) {
  Words words = {"eval", kModel, "--mesh", "tp=2", "--input", input, "--output", out, "--grads"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// One rank of two as torchrun starts it.
std::unique_ptr<Process> StartRank(int rank, const std::string& port, const Words& words) {
  const std::string number = std::to_string(rank);
  return std::make_unique<Process>(RankExecutablePath(), words,
                                   Words{"RANK=" + number, "LOCAL_RANK=" + number, "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
                                         "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port});
}

// An input whose evaluation, a row at a time, takes minutes.
std::string EndlessInput(const ScratchFolder& folder) {
  std::string rows;
  for (int i = 0; i < 16384; ++i) rows += i == 0 ? "[1,2,3,4]" : ",[1,2,3,4]";
  return folder.Write("long.json", "{\"input_ids\":[" + rows + "]}");
}

// The program at work on that input, its two ranks well inside their collectives.
struct LongEval {
  ScratchFolder folder;
  std::string out = folder / "out.safetensors";
  Process program{ExecutablePath(),
                  EvalWords(EndlessInput(folder), out, {"--micro-batches", "16384"}),
                  {"TMPDIR=" + folder.path()}};
};

TEST_CASE("a mesh of more ranks than one machine can start is refused with the number") {
  const Outcome done = RunExecutable(
      ExecutablePath(), {"eval", kModel, "--mesh", "dp=65536", "--input", kRecorded, "--output", "-"}, {}, kSeconds);
  INFO(done.ToText());
  CHECK(done.code == 2);
  CHECK_THAT(done.err, Contains("error[MS0308]: the mesh has too many ranks to start them on one machine") &&
                           Contains("required: at most"));
}

TEST_CASE("started as torchrun starts them") {
  const ScratchFolder folder;
  const std::string port = FreePort();
  const Words words = EvalWords(kRecorded, folder / "out.safetensors");
  const auto zero = StartRank(0, port, words);
  const auto one = StartRank(1, port, words);
  const Outcome first = zero->Wait();
  const Outcome second = one->Wait();
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK(first.code == 0);
  CHECK(second.code == 0);
  CHECK(first.err.empty());
  CHECK(second.err.empty());
  CHECK(RunExecutable(ExecutablePath(), {"compare", folder / "out.safetensors", kModel + "/expected_1.safetensors"})
            .code == 0);
}

TEST_CASE("ranks with different plans stop before they compute, each with the difference") {
  const ScratchFolder folder;
  const std::string port = FreePort();
  const auto zero = StartRank(0, port, EvalWords(kRecorded, folder / "out.safetensors"));
  const auto one =
      StartRank(1, port, EvalWords(kRecorded, folder / "out.safetensors", {"--option", "sequence_parallel=true"}));
  for (const auto& rank : {zero.get(), one.get()}) {
    const Outcome done = rank->Wait(kSeconds);
    INFO(done.ToText());
    CHECK_FALSE(done.timed_out);
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Contains("error[MS0502]: ") && Contains("of rank 0: ") && Contains("; of rank 1: "));
    CHECK_THAT(done.err, Contains("partial -> replicate") && Contains("partial -> shard(1)"));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "out.safetensors"));
}

TEST_CASE("a rank that never comes: the other gives up when its time is over, in words") {
  const ScratchFolder folder;
  for (const int rank : {0, 1}) {
    const auto alone =
        StartRank(rank, FreePort(), EvalWords(kRecorded, folder / "out.safetensors", {"--timeout", "1"}));
    const Outcome done = alone->Wait(kSeconds);
    INFO(done.ToText());
    CHECK_FALSE(done.timed_out);
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Catch::StartsWith("error[MS0503]: not all ranks joined"));
    CHECK_THAT(done.err, Contains("every rank of the mesh takes part, at the same time") && !Contains("frame #"));
  }
}

TEST_CASE("a killed rank takes the others with it, and is named") {
  for (const int victim : {0, 1}) {
    LongEval eval;
    REQUIRE(WaitForProcesses("moonshard-run", eval.out, 2, kSeconds).size() == 2);
    usleep(1'500'000);  // past the rendezvous on most machines; before it, the outcome must be the same
    const std::vector<pid_t> ranks = ProcessesOf("moonshard-run", eval.out);
    REQUIRE(ranks.size() == 2);  // else the input is too small
    kill(ProcessOfRank(ranks, victim), SIGKILL);
    const Outcome done = eval.program.Wait(kSeconds);
    INFO(done.ToText());
    CHECK_FALSE(done.timed_out);
    CHECK(done.code == 1);
    CHECK(done.out.empty());
    CHECK_THAT(done.err, Contains("error[MS0503]: rank " + std::to_string(victim) + " was ended by signal 9"));
    CHECK_THAT(done.err, !Contains("frame #") && !Contains("defect"));
    CHECK(WaitForProcesses("moonshard-run", eval.out, 0, 5).empty());
    CHECK_FALSE(std::filesystem::exists(eval.out));
  }
}

TEST_CASE("a killed launcher leaves no rank") {
  LongEval eval;
  REQUIRE(WaitForProcesses("moonshard-run", eval.out, 2, kSeconds).size() == 2);
  kill(eval.program.pid(), SIGKILL);
  const Outcome done = eval.program.Wait(kSeconds);
  CHECK_FALSE(done.timed_out);
  CHECK(done.signal == SIGKILL);
  CHECK(WaitForProcesses("moonshard-run", eval.out, 0, 5).empty());
}

TEST_CASE("an interrupted launcher ends its ranks, tidies up and ends by the signal") {
  for (const int signal : {SIGINT, SIGTERM}) {
    LongEval eval;
    REQUIRE(WaitForProcesses("moonshard-run", eval.out, 2, kSeconds).size() == 2);
    kill(eval.program.pid(), signal);
    const Outcome done = eval.program.Wait(kSeconds);
    INFO(done.ToText());
    CHECK_FALSE(done.timed_out);
    CHECK(done.signal == signal);
    CHECK_THAT(done.err, !Contains("MS0503"));
    CHECK(ProcessesOf("moonshard-run", eval.out).empty());
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(eval.out).parent_path())) {
      CHECK(entry.path().filename() == "long.json");  // neither output nor the directory that the ranks met in
    }
  }
}

}  // namespace
}  // namespace moonshard::test
