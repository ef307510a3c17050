// Saving, going on, being stopped and being killed: nothing is lost but the steps since the last save, and what goes on
// is to the bit what would have been.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>

#include "tests/dsl/commands/train/runs.h"
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
    CHECK_THAT(resumed.err, Contains("resumed after step 5") && !Contains("which was"));
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
  const auto train = [&](const std::string& mesh, const std::string& steps, const std::string& log,
                         const std::string& context = "ulysses") {
    const Outcome done = RunTraining(
        TrainWords(folder, {"--mesh", mesh, "--option", "context=" + context, "--decay-steps", "16", "--steps", steps,
                            "--log", folder / log, "--save", folder / "run", "--resume"}));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
  };
  train("tp=2", "2", "moved");
  train("dp=2,cp=2", "4", "moved");  // every parameter is sharded over four ranks
  train("tp=2", "6", "moved");
  train("dp=2", "8", "moved");
  train("cp=2", "9", "moved");
  train("cp=4", "10", "moved", "ring");
  train("cp=2,tp=2", "11", "moved", "ring");
  train("cp=2x2", "12", "moved", "ulysses_ring");
  train("cp=2", "13", "moved");
  train("dp=2,cp=2x2", "14", "moved", "ulysses_ring");  // every parameter is sharded over eight ranks
  train("tp=2", "15", "moved");
  train("tp=1", "16", "moved");
  const Outcome done =
      RunTraining(TrainWords(folder, {"--decay-steps", "16", "--steps", "16", "--log", folder / "alone"}));
  REQUIRE(done.code == 0);
  const std::vector<double> alone = Losses(folder / "alone");
  ExpectNear(Losses(folder / "moved"), alone, BoundOfCurve(alone));
}

TEST_CASE("a run with experts on ep goes on on another mesh") {
  const ScratchFolder folder;
  const std::string model = SourcePath("tests/parity/mixtral");
  const auto train = [&](const std::string& mesh, const std::string& steps, const std::string& log) {
    Words words = {"--mesh",        mesh, "--option", "exchange=true", "--dtype", "float64",
                   "--decay-steps", "12", "--steps",  steps,           "--log",   folder / log};
    if (log == "moved") words.insert(words.end(), {"--save", folder / "run", "--resume"});
    const Outcome done = RunTraining(TrainWords(folder, words, model));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
  };
  train("ep=2", "2", "moved");
  train("ep=4", "4", "moved");
  train("tp=2", "5", "moved");
  train("dp=2,ep=2", "7", "moved");
  train("dp=2,ep=2,tp=2", "9", "moved");
  train("ep=2,tp=2", "10", "moved");
  train("tp=1", "12", "moved");
  train("tp=1", "12", "alone");
  const std::vector<double> alone = Losses(folder / "alone");
  CHECK(alone.back() < alone.front() - 0.2);  // it learns
  ExpectNear(Losses(folder / "moved"), alone, 1e-9);
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
  CHECK_THAT(again.err, Contains("already has a run, saved after step 9") && Contains("--resume"));
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
  CHECK_THAT(moved.err, Contains("saved with other data: --sequence differs"));
}

// Every file below a directory with its bytes.
std::map<std::string, std::string> AllFiles(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) out[entry.path().string()] = ReadWholeFile(entry.path().string());
  }
  return out;
}

TEST_CASE("a run without 'latest' is a run") {
  const ScratchFolder folder;
  const auto train = [&](const std::string& steps, const Words& more) {
    Words words = {"--steps", steps, "--save", folder / "run", "--save-every", "2", "--schedule", "constant"};
    words.insert(words.end(), more.begin(), more.end());
    return RunTraining(TrainWords(folder, words));
  };
  REQUIRE(train("4", {}).code == 0);
  fs::remove(folder / "run/latest");
  const auto before = AllFiles(folder / "run");
  for (const Words& more : {Words{}, Words{"--init", "2"}, Words{"--keep", "1"}}) {
    const Outcome refused = train("4", more);
    INFO(refused.ToText());
    CHECK(refused.code == 1);
    CHECK_THAT(refused.err, Contains("already has a run: steps 2, 4") && Contains("--resume"));
    CHECK(AllFiles(folder / "run") == before);
  }
  std::ofstream(folder / "run/step_00000004/rank-00000.safetensors", std::ios::app) << "x";
  const Outcome resumed = train("3", {"--resume"});
  INFO(resumed.ToText());
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.err,
             Contains("resumes from step 2, the newest valid step of 2, 4") && Contains("resumed after step 2"));
  // A directory that a step would replace, and that is none.
  fs::remove(folder / "run/step_00000002/moonshard.json");
  const Outcome bare = train("6", {"--resume"});
  INFO(bare.ToText());
  CHECK(bare.code == 2);
  CHECK_THAT(bare.err, Contains("step_00000002' has no moonshard.json"));
}

TEST_CASE("the command line holds for what a step remembers of the optimizer, and both values are said") {
  const ScratchFolder folder;
  const auto train = [&](const std::string& run, const std::string& steps, const Words& more) {
    if (!fs::exists(folder / run)) fs::create_directories(folder / run);
    Words words = {"--steps", steps,  "--save",     folder / run, "--resume", "--log", folder / (run + ".log"),
                   "--lr",    "1e-2", "--schedule", "constant"};
    words.insert(words.end(), more.begin(), more.end());
    Outcome done = RunTraining(TrainWords(folder, words));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return done;
  };
  train("same", "2", {});
  fs::copy(folder / "same", folder / "other", fs::copy_options::recursive);
  train("same", "5", {});
  CHECK(LogLines(folder / "same.log", "resume").at(0).Find("changes")->AsArray().empty());
  const Words changed = {"--weight-decay", "0.7", "--betas", "0.5,0.6", "--eps", "1e-3", "--clip", "0.5"};
  const Outcome done = train("other", "5", changed);
  for (const char* said : {"--weight-decay 0.7, which was 0.1", "--betas [0.5,0.6], which was [0.9,0.95]",
                           "--eps 0.001, which was 1e-08", "--clip 0.5, which was 1.0"}) {
    CHECK_THAT(done.err, Contains(std::string("resumed with ") + said));
  }
  const JsonValue::Array changes = LogLines(folder / "other.log", "resume").at(0).Find("changes")->AsArray();
  REQUIRE(changes.size() == 4);
  CHECK(Losses(folder / "other.log").back() != Losses(folder / "same.log").back());
  // The options are the run's from here on: nothing is said of them the next time.
  const Outcome again = train("other", "6", changed);
  CHECK_THAT(again.err, Contains("resumed after step 5") && !Contains("which was"));
}

TEST_CASE("what is resumed is compared: the step, the data, the config; and a flag accepts what may change") {
  const ScratchFolder folder;
  const std::string model = folder.CopyOf(kModel, "model");
  const Words options = {"--save", folder / "run", "--save-every", "2", "--schedule", "constant"};
  const auto train = [&](const std::string& steps, const Words& more, const std::string& data = {}) {
    Words words = options;
    words.insert(words.end(), {"--steps", steps});
    words.insert(words.end(), more.begin(), more.end());
    words = TrainWords(folder, words, model);
    if (!data.empty()) folder.Write("tokens.bin", data);
    return RunTraining(words);
  };
  REQUIRE(train("4", {}).code == 0);
  fs::copy(folder / "run", folder / "good", fs::copy_options::recursive);
  const auto back_to_good = [&] {
    fs::remove_all(folder / "run");
    fs::copy(folder / "good", folder / "run", fs::copy_options::recursive);
  };

  // Another step under this one's name.
  fs::remove_all(folder / "run/step_00000004");
  fs::copy(folder / "run/step_00000002", folder / "run/step_00000004");
  fs::copy(folder / "good/step_00000002", folder / "run/step_00000004",
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const Outcome renamed = train("6", {"--resume"});
  INFO(renamed.ToText());
  CHECK(renamed.code == 2);
  CHECK_THAT(renamed.err, Contains("MS0410") && Contains("holds a different step than the directory name states") &&
                              Contains("step 2") && Contains("the last valid earlier step is 2"));
  back_to_good();

  // The same name and size, other content.
  const std::string other_data = RawTokens<uint16_t>(SomeTokens(4001, 64)).substr(2);
  const Outcome data = train("6", {"--resume"}, other_data);
  INFO(data.ToText());
  CHECK(data.code == 1);
  CHECK_THAT(data.err, Contains("other data: --data differs") && Contains("--accept-changes data"));
  const Outcome accepted = train("6", {"--resume", "--accept-changes", "data"}, other_data);
  INFO(accepted.ToText());
  CHECK(accepted.code == 0);
  CHECK_THAT(accepted.err, Contains("warning") && Contains("other data: --data differs"));
  back_to_good();

  // A number of the config that no tensor shows.
  const std::string config = ReadWholeFile(model + "/config.json");
  for (const auto& [from, to] : {std::pair("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-02"),
                                 std::pair("\"rope_theta\": 10000.0", "\"rope_theta\": 500.0")}) {
    INFO(to);
    std::ofstream(model + "/config.json") << Replaced(config, from, to);
    const Outcome refused = train("6", {"--resume"});
    INFO(refused.ToText());
    CHECK(refused.code == 1);
    CHECK_THAT(refused.err, Contains("another config.json") && Contains("--accept-changes config"));
    CHECK_THAT(refused.err, Contains(std::string(from).substr(1, 10)));
  }
  const Outcome with = train("6", {"--resume", "--accept-changes", "config"});
  INFO(with.ToText());
  CHECK(with.code == 0);
  CHECK_THAT(with.err, Contains("rope_parameters.rope_theta"));
}

TEST_CASE("a log that was cut within a line takes the next record on a line of its own") {
  const ScratchFolder folder;
  const std::string log = folder.Write("log", "{\"event\": \"step\", \"st");
  REQUIRE(RunTraining(TrainWords(folder, {"--steps", "2", "--log", log})).code == 0);
  std::istringstream lines(ReadWholeFile(log));
  std::string first;
  std::getline(lines, first);
  CHECK(first == "{\"event\": \"step\", \"st");
  int whole = 0;
  for (std::string line; std::getline(lines, line);) whole += ParseJson(line, log).ok() ? 1 : 0;
  CHECK(whole == 3);  // two steps and the end
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
        program(ExecutablePath(), words, {"TMPDIR=" + folder.path(), "OMP_NUM_THREADS=1"}) {}

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

TEST_CASE("the second run in a directory is told when it begins, and takes nothing") {
  LongRun run({"--save-every", "3"});
  run.WaitForSteps(5);
  for (const Words& more : {Words{}, Words{"--resume"}}) {
    Words words = run.words;
    *std::find(words.begin(), words.end(), "1000000") = "3";
    words.insert(words.end(), more.begin(), more.end());
    const Outcome second = RunTraining(words);
    INFO(second.ToText());
    CHECK(second.code == 1);
    CHECK_THAT(second.err,
               Contains("MS0413") && Contains("another run has the lock of '") && Contains("declared: process "));
  }
  // It is released with the process, however that ends.
  for (const pid_t rank : run.ranks()) kill(rank, SIGKILL);
  (void)run.program.Wait(kSeconds);
  Words words = run.words;
  *std::find(words.begin(), words.end(), "1000000") = std::to_string(LogLines(run.folder / "log").size() + 1);
  words.emplace_back("--resume");
  const Outcome next = RunTraining(words);
  INFO(next.ToText());
  CHECK(next.code == 0);
}

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
      ExecutablePath(),
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
    // The launcher sees at once that a rank was killed; of one that was stopped the others hear when their time is
    // over. Starting and saving have to be done within it as well.
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
      // In a collective of the step, or in an exchange of a save: wherever rank 1 stood.
      CHECK_THAT(done.err, Contains("a rank of tp[0,1] exited or did not respond within the timeout") ||
                               Contains("rank 1 did not join within 10.0 s"));
      CHECK_THAT(done.err, Contains("rank 1 was suspended (by a signal"));
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
  return std::make_unique<Process>(ExecutablePath(), words,
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
    // Its ends are what the ranks compare at the start.
    std::fstream ends(path, std::ios::in | std::ios::out | std::ios::binary);
    const std::string zeros(size_t{5} << 20, '\0');
    ends.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
    ends.seekp(-static_cast<std::streamoff>(zeros.size()), std::ios::end);
    ends.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
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
      {"other data",
       {"--data", tokens("a", 1)},
       {"--data", tokens("b", 2)},
       1,
       {"MS0502", "the training run", "more.bin"}},
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
