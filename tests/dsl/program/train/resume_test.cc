// Saving, going on, being stopped and being killed: nothing is lost but the steps since the last save, and what goes on is
// to the bit what would have been.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "tests/dsl/program/train/runs.h"
#include "tests/support/paths.h"
#include "tests/support/pty.h"

namespace moonshard::test {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;
constexpr double kSeconds = 40;

TEST_CASE("ten steps are five and five, to the bit") {
  struct Row {
    std::string mesh;
    Words more;
  };
  for (const Row& row : {Row{"tp=1", {}}, Row{"tp=2", {"--option", "sequence_parallel=true"}},
                         Row{"dp=2,tp=2", {"--micro-batches", "2", "--dtype", "bfloat16"}}}) {
    INFO(row.mesh);
    const ScratchFolder folder;
    const auto train = [&](const std::string& log, const std::string& steps, const Words& more) {
      Words words = {"--mesh", row.mesh, "--decay-steps", "10", "--steps", steps, "--log", log, "--log-every", "100"};
      words.insert(words.end(), row.more.begin(), row.more.end());
      words.insert(words.end(), more.begin(), more.end());
      Outcome done = RunTraining(TrainWords(folder, words));
      INFO(done.ToText());
      REQUIRE(done.code == 0);
      return done;
    };
    train(folder / "whole", "10", {});
    train(folder / "parts", "5", {"--save", folder / "run", "--resume"});
    CHECK(fs::exists(folder / "run/step_00000005"));
    const Outcome resumed = train(folder / "parts", "10", {"--save", folder / "run", "--resume"});
    CHECK_THAT(resumed.err, Contains("resumed after step 5"));
    CHECK(Numbers(folder / "parts") == Numbers(folder / "whole"));
    CHECK(fs::exists(folder / "run/step_00000010"));
  }
}

TEST_CASE("dropout goes on to the bit too, and recomputation drops what was dropped") {
  const ScratchFolder folder;
  const std::string model = folder.CopyOf(kModel, "model");
  std::ofstream(model + "/config.json") << Replaced(ReadWholeFile(kModel + "/config.json"),
                                                    "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.3");
  const std::string plan =
      folder.Write("plan.lua", "return plan { extends \"llama\", recompute { \"model.layers.*\" } }");
  const auto train = [&](const std::string& log, const std::string& steps, const Words& more,
                         const std::string& of = {}) {
    Words words = {"--mesh", "dp=2,tp=2", "--decay-steps", "6", "--steps", steps, "--log", folder / log};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunTraining(TrainWords(folder, words, of.empty() ? model : of));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
  };
  train("whole", "6", {});
  train("parts", "3", {"--save", folder / "run"});
  train("parts", "6", {"--save", folder / "run", "--resume"});
  CHECK(Numbers(folder / "parts") == Numbers(folder / "whole"));
  train("again", "6", {"--plan", plan});
  CHECK(Losses(folder / "again") == Losses(folder / "whole"));
  train("without", "6", {}, kModel);
  CHECK(Losses(folder / "without") != Losses(folder / "whole"));
}

TEST_CASE("a run goes on on another mesh") {
  const ScratchFolder folder;
  const auto train = [&](const std::string& mesh, const std::string& steps, const std::string& log) {
    const Outcome done = RunTraining(TrainWords(folder, {"--mesh", mesh, "--decay-steps", "9", "--steps", steps,
                                                         "--log", folder / log, "--save", folder / "run", "--resume"}));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
  };
  train("tp=2", "3", "moved");
  train("dp=2", "6", "moved");
  train("tp=1", "9", "moved");
  const Outcome done =
      RunTraining(TrainWords(folder, {"--decay-steps", "9", "--steps", "9", "--log", folder / "alone"}));
  REQUIRE(done.code == 0);
  const std::vector<double> alone = Losses(folder / "alone");
  ExpectNear(Losses(folder / "moved"), alone, BoundOfCurve(alone));
}

TEST_CASE("steps are saved as the run goes, the old ones go, and a directory with a run is not written over") {
  const ScratchFolder folder;
  const Words words = TrainWords(folder, {"--mesh", "tp=2", "--steps", "9", "--save", folder / "run", "--save-every",
                                          "2", "--keep", "2", "--log", folder / "log"});
  const Outcome done = RunTraining(words);
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  CHECK(LogLines(folder / "log", "save").size() == 5);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder / "run")) {
    if (entry.is_directory()) left.push_back(entry.path().filename());
  }
  std::ranges::sort(left);
  CHECK(left == std::vector<std::string>{"step_00000008", "step_00000009"});
  const Outcome again = RunTraining(words);
  INFO(again.ToText());
  CHECK(again.code == 1);
  CHECK_THAT(again.err, Contains("holds a run already, saved after step 9") && Contains("--resume"));
  Words over = words;
  over.emplace_back("--resume");
  const Outcome nothing = RunTraining(over);
  INFO(nothing.ToText());
  CHECK(nothing.code == 0);
  Words other = over;
  *std::find(other.begin(), other.end(), "16") = "8";  // rows of another length
  const Outcome moved = RunTraining(other);
  INFO(moved.ToText());
  CHECK(moved.code == 1);
  CHECK_THAT(moved.err, Contains("while it went through other data"));
}

// A run that ends when it is made to.
struct LongRun {
  explicit LongRun(const Words& more = {})
      : words([&] {
          Words all = TrainWords(folder, {"--mesh", "tp=2", "--steps", "1000000", "--log", folder / "log", "--save",
                                          folder / "run", "--schedule", "constant"});
          all.insert(all.end(), more.begin(), more.end());
          return all;
        }()),
        program(ProgramPath(), words, {"TMPDIR=" + folder.path(), "OMP_NUM_THREADS=1"}) {}

  // Until so many steps are done.
  void WaitForSteps(size_t steps) const {
    for (int i = 0; i < 1200; ++i) {
      usleep(50'000);
      std::ifstream log(folder / "log");
      size_t lines = 0;
      for (std::string line; std::getline(log, line);) ++lines;
      if (lines >= steps) return;
    }
    FAIL("the run does not get along");
  }
  std::vector<pid_t> ranks() const { return ProcessesOf("moonshard-run", folder / "log"); }

  ScratchFolder folder;
  Words words;
  Process program;
};

TEST_CASE("asked to stop: it saves, ends by the signal, and goes on to the bit") {
  for (const int signal : {SIGINT, SIGTERM}) {
    LongRun run;
    run.WaitForSteps(4);
    kill(run.program.pid(), signal);
    const Outcome done = run.program.Wait(kSeconds);
    INFO(done.ToText());
    CHECK_FALSE(done.timed_out);
    CHECK(done.signal == signal);
    CHECK_THAT(done.err, Contains("stopped after step ") && !Contains("MS0503"));
    const auto saved = LogLines(run.folder / "log", "save");
    const auto steps = LogLines(run.folder / "log");
    REQUIRE(saved.size() == 1);
    CHECK(saved[0].Find("step")->AsInt() == static_cast<int64_t>(steps.size()));
    CHECK(run.ranks().empty());

    // Three steps more are those of a run that nobody stopped.
    const std::string last = std::to_string(steps.size() + 3);
    Words words = run.words;
    *std::find(words.begin(), words.end(), "1000000") = last;
    Words full = words;
    words.emplace_back("--resume");
    REQUIRE(RunTraining(words).code == 0);
    *std::find(full.begin(), full.end(), run.folder / "log") = run.folder / "whole";
    *std::find(full.begin(), full.end(), run.folder / "run") = run.folder / "other";
    REQUIRE(RunTraining(full).code == 0);
    CHECK(Numbers(run.folder / "log") == Numbers(run.folder / "whole"));
  }
}

TEST_CASE("one rank that is asked stops all of them after the same step") {
  LongRun run;
  run.WaitForSteps(3);
  const std::vector<pid_t> ranks = run.ranks();
  REQUIRE(ranks.size() == 2);
  kill(ProcessOfRank(ranks, 1), SIGTERM);
  const Outcome done = run.program.Wait(kSeconds);
  INFO(done.ToText());
  CHECK(done.code == 128 + SIGTERM);
  CHECK(LogLines(run.folder / "log", "save").size() == 1);
}

TEST_CASE("on a terminal one line is written over and over, and Ctrl-C saves and stops") {
  const ScratchFolder folder;
  Pty program(
      ProgramPath(),
      TrainWords(folder, {"--mesh", "tp=2", "--steps", "1000000", "--save", folder / "run", "--log", folder / "log"}),
      {"TERM=xterm", "OMP_NUM_THREADS=1"});
  REQUIRE(program.WaitFor("tokens/s", kSeconds));
  REQUIRE(program.WaitFor("tokens/s", kSeconds));
  CHECK_THAT(program.Shown(), !Contains("\n"));
  program.Type("\x03");  // the terminal sends it to the launcher and to every rank
  CHECK(program.WaitFor("stopped after step ", kSeconds));
  program.Wait(kSeconds);
  CHECK(LogLines(folder / "log", "save").size() == 1);
  CHECK(fs::exists(folder / "run/latest"));
}

// What /proc/PID/status says under this name.
std::string StatusOf(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  }
  return "";
}

// Whether a signal was sent to a process that has not taken it yet.
bool IsPending(pid_t pid, int signal) {
  const std::string mask = StatusOf(pid, "ShdPnd");
  return !mask.empty() && (std::stoull(mask, nullptr, 16) >> (signal - 1) & 1) != 0;
}

// Asks until it holds or the time is over; whether it held.
bool Comes(const std::function<bool()>& holds) {
  for (int i = 0; i < static_cast<int>(kSeconds * 100); ++i) {
    if (holds()) return true;
    usleep(10'000);
  }
  return false;
}

TEST_CASE("a second Ctrl-C ends it at once") {
  LongRun run;
  run.WaitForSteps(2);
  const std::vector<pid_t> ranks = run.ranks();
  REQUIRE(ranks.size() == 2);
  kill(ranks[0], SIGSTOP);  // so that it cannot stop by itself
  REQUIRE(Comes([&] { return StatusOf(ranks[0], "State").starts_with("T"); }));
  kill(run.program.pid(), SIGINT);
  // Two signals that come before the first is taken are one. What the launcher does on the first: it asks its ranks.
  REQUIRE(Comes([&] { return IsPending(ranks[0], SIGTERM); }));
  kill(run.program.pid(), SIGINT);
  const Outcome done = run.program.Wait(10);
  INFO(done.ToText());
  CHECK_FALSE(done.timed_out);
  CHECK(done.signal == SIGINT);
  CHECK(run.ranks().empty());
}

TEST_CASE("a killed or a stopped rank: everybody ends in time, and it is said where they stood") {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    // The launcher sees at once that a rank was killed; of one that was stopped the others hear when their time is over.
    // Starting and saving have to be done within it as well.
    LongRun run({"--timeout", signal == SIGKILL ? "30" : "10", "--save-every", "2"});
    run.WaitForSteps(8);
    const std::vector<pid_t> ranks = run.ranks();
    REQUIRE(ranks.size() == 2);
    kill(ProcessOfRank(ranks, 1), signal);
    const Outcome done = run.program.Wait(kSeconds);
    INFO(done.ToText());
    CHECK_FALSE(done.timed_out);
    CHECK(done.code == 1);
    CHECK(run.ranks().empty());
    CHECK_THAT(done.err, Contains("MS0503") && !Contains("frame #") && !Contains("defect"));
    if (signal == SIGKILL) {
      CHECK_THAT(done.err, Contains("rank 1 was ended by signal 9"));
    } else {
      CHECK_THAT(done.err, Contains("a rank of tp[0,1] exited or did not respond within the timeout"));
      CHECK_THAT(done.err, Contains("rank 1 was halted by a signal"));
    }
    // What was saved is there, and good.
    Words words = run.words;
    const auto steps = static_cast<int64_t>(LogLines(run.folder / "log").size());
    *std::find(words.begin(), words.end(), "1000000") = std::to_string(steps + 2);
    *std::next(std::find(words.begin(), words.end(), "--timeout")) = "30";
    words.emplace_back("--resume");
    const Outcome resumed = RunTraining(words);
    INFO(resumed.ToText());
    CHECK(resumed.code == 0);
    CHECK_THAT(resumed.err, Contains("resumed after step "));
  }
}

// One rank of two as torchrun starts it, with a store in a file.
std::unique_ptr<Process> StartRank(const ScratchFolder& folder, int rank, const Words& words) {
  const std::string number = std::to_string(rank);
  return std::make_unique<Process>(ProgramPath(), words,
                                   Words{"RANK=" + number, "LOCAL_RANK=" + number, "WORLD_SIZE=2", "OMP_NUM_THREADS=1",
                                         "MOONSHARD_STORE=" + folder / "store"});
}

TEST_CASE("ranks that others started, and that go apart: told on every rank, in time") {
  struct Row {
    std::string name;
    Words zero, one;  // of each rank
    int code;
    Words said;
  };
  const ScratchFolder files;
  const auto tokens = [&](const std::string& name, int64_t last) {
    std::filesystem::create_directory(files / name);
    std::vector<int64_t> all = SomeTokens(4000, 64);
    all.back() = last;
    for (size_t i = 0; i < all.size(); i += 50) all[i] = last;
    return files.Write(name + "/more.bin", RawTokens<uint16_t>(all));
  };
  // Too large to be checked at the start: what its ids are shows at the first step.
  const auto large = [&](const std::string& name, char byte) {
    std::filesystem::create_directory(files / name);
    std::string path = files / (name + "/large.bin");
    constexpr size_t kBytes = size_t{130} << 20;
    if (byte != 0) files.Write(name + "/large.bin", std::string(kBytes, byte));
    std::ofstream(path, std::ios::app).close();
    std::filesystem::resize_file(path, kBytes);
    return path;
  };
  const std::vector<Row> rows = {
      {"good", {}, {}, 0, {}},
      {"no data", {}, {"--data", files / "none.bin"}, 2, {"rank 1: cannot read", "none.bin"}},
      {"a token that is none",
       {"--data", large("c", 0)},
       {"--data", large("d", '\xff')},
       1,
       {"rank 1: token", "large.bin"}},
      {"another rate", {"--lr", "1e-3"}, {"--lr", "2e-3"}, 1, {"MS0502", "the training run", "0.001", "0.002"}},
      {"other data", {"--data", tokens("a", 1)}, {"--data", tokens("b", 2)}, 1, {"MS0507", "rank 0", "rank 1"}},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    const ScratchFolder folder;
    const auto start = [&](int rank, const Words& own) {
      Words words = {"--mesh", "tp=2", "--steps", "3", "--timeout", "30"};
      words.insert(words.end(), own.begin(), own.end());
      return StartRank(folder, rank, TrainWords(folder, words));
    };
    const auto zero = start(0, row.zero);
    const auto one = start(1, row.one);
    for (Process* rank : {zero.get(), one.get()}) {
      const Outcome done = rank->Wait(kSeconds);
      INFO(done.ToText());
      CHECK_FALSE(done.timed_out);
      CHECK(done.code == row.code);
      for (const std::string& said : row.said) CHECK_THAT(done.err, Contains(said));
    }
  }
}

}  // namespace
}  // namespace moonshard::test
