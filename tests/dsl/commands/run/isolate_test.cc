// `--isolate`: a plan is evaluated in a child process under limits, whichever verb evaluates it, in every process that
// does.
//
// What shows where a plan was evaluated is a plan that is good here and too large for a child: it declares options
// whose text is 8 MB, which a child has to write as JSON of 96 MB, more than it may hold or send.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "tests/dsl/commands/train/token_bytes.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

std::string WidePlan(const ScratchFolder& scratch) {
  std::string text = "local wide <const> = string.rep('\\1', 1000000)\noptions {";
  for (int i = 0; i < 8; ++i) text += " w" + std::to_string(i) + " = wide,";
  return scratch.Write("wide.lua", text + " }\nreturn plan { api = 1, extends 'llama' }\n");
}

bool EndedInChild(const Outcome& done) {
  const std::string all = done.out + done.err;
  return all.find("error[MS0109]") != std::string::npos && all.find("wide.lua") != std::string::npos &&
         all.find("evaluated in a separate process (isolate)") != std::string::npos;
}

// The names in the help of the program and its verbs, where a new one stands by itself.
std::set<std::string> VerbsThatTake(const std::string& option) {
  const std::string help = RunExecutable(ExecutablePath(), {"--help"}).out;
  const size_t begin = help.find("Subcommands:");
  REQUIRE(begin != std::string::npos);
  std::set<std::string> out;
  std::istringstream lines(help.substr(begin));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (!line.starts_with("  ") || line[2] == ' ') continue;
    const std::string verb = line.substr(2, line.find(' ', 2) - 2);
    if (RunExecutable(ExecutablePath(), {verb, "--help"}).out.find("\n  " + option + " ") != std::string::npos ||
        RunExecutable(ExecutablePath(), {verb, "--help"}).out.find("\n  " + option + "\n") != std::string::npos) {
      out.insert(verb);
    }
  }
  return out;
}

struct IsolatedRow {
  const char* what;
  Words words;              // verb, model, what the verb needs
  bool ranks = false;       // it runs moonshard-run, which evaluates the plan once more
  int code = 2;             // with a plan that has errors
  bool names_plan = false;  // the words already name the plan
};

TEST_CASE("every verb that takes a plan isolates it") {
  const ScratchFolder scratch;
  const std::string plan = WidePlan(scratch);
  const std::string input = kModel + "/inputs_1.safetensors";
  const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 64)));
  const Words steps = {"--data", data, "--steps", "1", "--batch", "2", "--sequence", "8"};
  const auto training = [&](Words words) {
    words.insert(words.end(), steps.begin(), steps.end());
    return words;
  };
  const std::vector<IsolatedRow> rows = {
      {"explain", {"explain", kModel}},
      {"explain --passes", {"explain", kModel, "--passes"}},
      {"explain --memory", {"explain", kModel, "--memory", "--tokens", "1,16"}, true},
      {"check", {"check", kModel}, false, 1},
      {"export", {"export", kModel, "--form", "torch"}},
      {"shard", {"shard", kModel, scratch / "sharded"}},
      {"repl", {"repl", kModel, "-c", ":unmatched"}},
      {"repl, another plan", {"repl", kModel, "-c", ":diff " + plan}, false, 1, true},
      {"eval", {"eval", kModel, "--input", input, "--output", scratch / "out"}, true},
      {"verify", {"verify", kModel}, true},
      {"verify --types", {"verify", kModel, "--types"}, true},
      {"verify --ops", {"verify", kModel, "--ops"}, true},
      {"train", training({"train", kModel}), true},
      {"train --init", training({"train", kModel, "--init", "1"}), true},
  };
  std::set<std::string> covered;
  for (const IsolatedRow& row : rows) {
    INFO(row.what);
    covered.insert(row.words.front());
    Words plain = row.words;
    if (!row.names_plan) plain.insert(plain.end(), {"--plan", plan});
    Words isolated = plain;
    isolated.emplace_back("--isolate");
    // The program, and where it runs ranks a rank that another launcher started: nothing has looked at the plan before.
    std::vector<std::string> programs = {ExecutablePath()};
    if (row.ranks) programs.emplace_back(RankExecutablePath());
    for (const std::string& program : programs) {
      const Outcome done = RunExecutable(program, isolated, {"OMP_NUM_THREADS=1"}, 120);
      INFO(program << "\n" << done.ToText());
      CHECK(done.code == row.code);
      CHECK(EndedInChild(done));
    }
    const Outcome here = RunExecutable(programs.back(), plain, {"OMP_NUM_THREADS=1"}, 120);
    INFO(here.ToText());
    CHECK(here.code == 0);
    CHECK_FALSE(EndedInChild(here));
  }
  // A new verb stands in the help; it belongs into the table above.
  const std::set<std::string> with_plan = VerbsThatTake("--plan TEXT");
  CHECK(with_plan == covered);
  CHECK(VerbsThatTake("--isolate") == covered);
}

TEST_CASE("each of several ranks isolates the plan") {
  const ScratchFolder scratch;
  const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 64)));
  // With new weights the launcher evaluates nothing: the ranks are the only ones that do.
  const Outcome done =
      RunExecutable(ExecutablePath(),
                    {"train", kModel, "--init", "1", "--mesh", "tp=2", "--isolate", "--plan", WidePlan(scratch),
                     "--data", data, "--steps", "1", "--batch", "2", "--sequence", "8"},
                    {"OMP_NUM_THREADS=1"}, 120);
  INFO(done.ToText());
  CHECK(done.code == 2);
  CHECK(EndedInChild(done));
}

TEST_CASE("an isolated plan computes what the plan does") {
  const ScratchFolder scratch;
  const std::string input = kModel + "/inputs_1.safetensors";
  const auto run = [&](const Words& more) {
    Words words = {"eval", kModel, "--mesh", "tp=2", "--input", input};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunExecutable(ExecutablePath(), words, {}, 120);
    INFO(done.ToText());
    REQUIRE(done.code == 0);
  };
  run({"--isolate", "--output", scratch / "isolated"});
  run({"--output", scratch / "plain"});
  CHECK(ReadWholeFile(scratch / "isolated") == ReadWholeFile(scratch / "plain"));
}

TEST_CASE("an isolated plan that passes a limit of the script is the same error as here") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("endless.lua", "while true do end\n");
  const Outcome done = RunExecutable(RankExecutablePath(), {"verify", kModel, "--isolate", "--plan", plan}, {}, 120);
  INFO(done.ToText());
  CHECK(done.code == 2);
  CHECK_THAT(done.err, Contains("endless.lua:1: error[MS0109]"));
}

}  // namespace
}  // namespace moonshard::test
