// Long waits and lost ranks, where the ranks of one machine meet over TCP, as torchrun's do.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <vector>

#include "tests/dsl/commands/train/runs.h"
#include "tests/support/free_port.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

std::unique_ptr<Process> StartOneOf(int ranks, int rank, const std::string& port, const Words& words,
                                    const Words& variables = {}) {
  const std::string number = std::to_string(rank);
  Words set = {"RANK=" + number,        "LOCAL_RANK=" + number,
               "MASTER_ADDR=127.0.0.1", "WORLD_SIZE=" + std::to_string(ranks),
               "MASTER_PORT=" + port,   "LOCAL_WORLD_SIZE=" + std::to_string(ranks)};
  set.insert(set.end(), variables.begin(), variables.end());
  return std::make_unique<Process>(RankExecutablePath(), words, set);
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void AwaitSteps(const std::string& log, size_t steps) {
  for (int tries = 0; tries < 600; ++tries) {
    if (std::filesystem::exists(log) && LogLines(log).size() >= steps) return;
    usleep(100'000);
  }
  FAIL("the run takes no steps");
}

TEST_CASE("one rank of a machine reports a long wait, ever more rarely, and names the rank that has not come") {
  const ScratchFolder folder;
  const std::string port = FreePort();
  const Words words = TrainWords(folder, {"--mesh", "dp=3", "--batch", "9", "--steps", "5"});
  const auto zero = StartOneOf(3, 0, port, words, {"MOONSHARD_PATIENCE=1"});
  const auto one = StartOneOf(3, 1, port, words, {"MOONSHARD_PATIENCE=1"});
  sleep(9);
  for (const auto& rank : {zero.get(), one.get()}) kill(rank->pid(), SIGTERM);
  const Outcome first = zero->Wait(20);
  const Outcome second = one->Wait(20);
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK_THAT(first.err, Contains("s for other ranks, in 'joining the other ranks'; not there: rank 2\n"));
  // After 1, 2, 4 and 8 seconds; the machine may be slow.
  const int reports = Count(first.err, "has waited");
  CHECK(reports >= 2);
  CHECK(reports <= 5);
  CHECK(second.err.empty());
}

// Rank 1 has tried to connect for some time, and waits ever longer between two attempts.
TEST_CASE("a failure right after joining ends a rank that had waited for the store") {
  const ScratchFolder folder;
  const std::string port = FreePort();
  const std::string other = folder.Write("other.bin", RawTokens<uint16_t>(std::vector<int64_t>(4000, 9999)));
  const Words more = {"--mesh", "tp=2", "--steps", "5"};
  Words there = TrainWords(folder, more);
  *(std::ranges::find(there, "--data") + 1) = other;  // a token outside the vocabulary
  const auto one = StartOneOf(2, 1, port, there);
  usleep(1'800'000);
  const auto zero = StartOneOf(2, 0, port, TrainWords(folder, more));
  const Outcome second = one->Wait(30);
  const Outcome first = zero->Wait(30);
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK(first.code > 0);
  CHECK(second.code == first.code);
  for (const Outcome& done : {first, second}) CHECK_THAT(done.err, Contains("outside the vocabulary"));
}

TEST_CASE("a rank that is suspended for five seconds is no failure, and the others name it while they wait") {
  const ScratchFolder folder;
  const std::string port = FreePort();
  const std::string log = folder / "log.jsonl";
  const Words words = TrainWords(folder, {"--mesh", "tp=2", "--steps", "100000", "--log", log});
  const auto zero = StartOneOf(2, 0, port, words, {"MOONSHARD_PATIENCE=2"});
  const auto one = StartOneOf(2, 1, port, words, {"MOONSHARD_PATIENCE=2"});
  AwaitSteps(log, 3);
  sleep(3);  // until rank 0 has read a sign of rank 1
  kill(one->pid(), SIGSTOP);
  sleep(5);
  kill(one->pid(), SIGCONT);
  const size_t steps = LogLines(log).size();
  AwaitSteps(log, steps + 3);
  kill(zero->pid(), SIGTERM);
  const Outcome first = zero->Wait(30);
  const Outcome second = one->Wait(30);
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK(first.code == 128 + SIGTERM);
  CHECK(second.code == 128 + SIGTERM);
  CHECK_THAT(first.err, !Contains("failed first"));
  CHECK_THAT(first.err, Contains("s for other ranks, in '"));
  CHECK_THAT(first.err, Contains("of tp[0,1]; not there: rank 1 on "));
}

TEST_CASE("a rank that is suspended for longer than MOONSHARD_SILENCE ends the others, and ends when it goes on") {
  const ScratchFolder folder;
  const std::string port = FreePort();
  const std::string log = folder / "log.jsonl";
  const Words words = TrainWords(folder, {"--mesh", "tp=2", "--steps", "100000", "--log", log});
  const Words variables = {"MOONSHARD_PATIENCE=600", "MOONSHARD_SILENCE=4"};
  const auto zero = StartOneOf(2, 0, port, words, variables);
  const auto one = StartOneOf(2, 1, port, words, variables);
  AwaitSteps(log, 3);
  sleep(3);
  kill(one->pid(), SIGSTOP);
  const Outcome first = zero->Wait(30);
  kill(one->pid(), SIGCONT);
  const Outcome second = one->Wait(30);
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK(first.code == 1);
  CHECK(second.code == 1);
  CHECK_THAT(first.err, Contains("rank 1 on ") && Contains("no sign of life for "));
}

}  // namespace
}  // namespace moonshard::test
