// Numbers of the command line, tried: each numeric option that `--help` of a verb shows is set to the ends of its
// range, to what lies beyond them and to texts that are no number, and each mesh and --tokens to sizes that are too
// large. Whatever is given ends soon, with a documented exit code and without a message of LibTorch or of C++ that has
// no place; and what is not in the range is a usage error with the option, the text and the range. A sample of the
// tries is run. MOONSHARD_NUMBER_TRIES=all runs every one (minutes).
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "dsl/commands/cli/number_ranges.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

// A try takes at most a second on an idle machine; a busy one gets many times as much.
constexpr double kMostSeconds = 5;
constexpr double kBusy = 6;

bool TriesAll() {
  const char* wanted = std::getenv("MOONSHARD_NUMBER_TRIES");
  return wanted != nullptr && std::string(wanted) == "all";
}

// A verb whose command line does all of its work in a moment.
struct VerbWords {
  std::string name;
  Words words;
  std::map<std::string, Words> with;  // more words for an option: what it needs, or what ends a run that it makes long
  bool tensors = false;               // moonshard-run has it too
};

class Tries {
 public:
  Tries() {
    const std::string input = folder_.Write("input.json", R"({"input_ids": [[1, 2, 3, 4], [5, 6, 7, 8]]})");
    const std::string data = folder_.Write("data.txt", std::string(5000, 'a'));
    const std::string small = kParity + "llama_vocab331";
    const std::string file = kModel + "/inputs_1.safetensors";
    const Words long_run = {"--data", folder_ / "none"};
    verbs_ = {
        {"explain", {kModel}, {}},
        {"eval", {kModel, "--input", input, "--output", folder_ / "out.safetensors"}, {}, true},
        {"verify", {kModel}, {{"--rank", {"--types"}}}, true},
        {"compare", {file, file}, {}, true},
        {"train",
         {small, "--data", data},
         {{"--steps", long_run},
          {"--eval-every", {"--eval-data", data}},
          {"--save-every", {"--save", folder_ / "run"}},
          {"--keep", {"--save", folder_ / "run", "--resume"}}},
         true},
    };
  }

  const std::vector<VerbWords>& verbs() const { return verbs_; }

  // The options of a verb that take numbers, as its help shows them.
  static std::vector<std::string> NumbersOf(const std::string& verb) {
    std::vector<std::string> out;
    std::istringstream lines(Run({verb, "--help"}).out);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string option;
      std::string type;
      words >> option >> type;
      if (!option.starts_with("--")) continue;
      for (const char* kind : {"INT", "UINT", "FLOAT", "[INT", "[FLOAT"}) {
        if (type.starts_with(kind)) {
          out.push_back(option);
          break;
        }
      }
    }
    return out;
  }

  Words WordsFor(const VerbWords& verb, const std::string& option, const std::string& value) const {
    Words words = {verb.name};
    words.insert(words.end(), verb.words.begin(), verb.words.end());
    if (verb.name == "train") {
      for (const auto& [name, usual] : {std::pair("--steps", "1"),
                                        {"--init", "1"},
                                        {"--batch", "2"},
                                        {"--sequence", option == "--batch" ? "2048" : "8"}})
        if (option != name) words.insert(words.end(), {name, usual});
    }
    if (const auto more = verb.with.find(option); more != verb.with.end())
      words.insert(words.end(), more->second.begin(), more->second.end());
    words.push_back(option + "=" + (option == "--betas" ? "0.5," + value : value));
    return words;
  }

 private:
  ScratchFolder folder_;
  std::vector<VerbWords> verbs_;
};

std::string Exact(double number) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.17g", number);
  return text;
}

std::vector<std::string> EndsOf(const NumberRange& range) {
  if (range.kind == NumberKind::kInteger) {
    return {std::to_string(range.least), std::to_string(range.most), std::to_string(range.least - 1),
            std::to_string(range.most + 1)};
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {Exact(range.lowest), Exact(range.highest), Exact(std::nextafter(range.highest, 0)),
          Exact(std::nextafter(range.lowest, -kInfinity)), Exact(std::nextafter(range.highest, kInfinity))};
}

const std::vector<std::string>& NoNumbers() {
  static const std::vector<std::string> texts = {"",
                                                 "nan",
                                                 "-nan",
                                                 "inf",
                                                 "-inf",
                                                 "1e999",
                                                 "-1e999",
                                                 "99999999999999999999",
                                                 "9223372036854775807",
                                                 "-9223372036854775808",
                                                 "18446744073709551616",
                                                 "-1",
                                                 "0x10",
                                                 "0b1",
                                                 " 5",
                                                 "5 ",
                                                 "5x",
                                                 "1.5",
                                                 "+5",
                                                 "1,5",
                                                 "1e3",
                                                 "\xEF\xBC\x91",
                                                 "--",
                                                 "1e-400"};
  return texts;
}

// What every try is held to.
void CheckEnd(const Outcome& done) {
  CHECK(!done.timed_out);
  CHECK(done.signal == 0);
  CHECK(done.seconds < kMostSeconds * kBusy);
  CHECK((done.code == 0 || done.code == 1 || done.code == 2));
  for (const char* text : {"std::", "c10::", "TORCH_CHECK", "Exception raised", "bad_alloc", "terminate",
                           "defect:", "moonshard-run: ", "INTERNAL ASSERT", "DefaultCPUAllocator"}) {
    CHECK_THAT(done.err, !Catch::Contains(text));
  }
  if (done.code != 0) CHECK(!(done.err + done.out).empty());
}

Outcome Try(const std::string& program, const Words& words) {
  return RunExecutable(program, words, {"OMP_NUM_THREADS=1"}, kMostSeconds * kBusy);
}

// One of `every` of these in a sample, the same in each run.
class Sample {
 public:
  bool Takes(unsigned every) { return TriesAll() || random_() % every == 0; }

 private:
  std::mt19937 random_{7};
};

TEST_CASE("each number of each verb is refused beyond its range and accepted at its ends") {
  const Tries tries;
  Sample sample;
  size_t options = 0;
  for (const VerbWords& verb : tries.verbs()) {
    for (const std::string& option : Tries::NumbersOf(verb.name)) {
      ++options;
      const NumberRange& range = RangeOf(option);  // throws where the table lacks it
      std::vector<std::string> values = EndsOf(range);
      values.insert(values.end(), NoNumbers().begin(), NoNumbers().end());
      for (const std::string& value : values) {
        const std::string why = WhyNotIn(range, value);
        for (const std::string& program : {ExecutablePath(), RankExecutablePath()}) {
          const bool rank_program = program == RankExecutablePath();
          if (rank_program && !verb.tensors) continue;
          // What is refused costs milliseconds, and in moonshard-run the load of LibTorch.
          if (!sample.Takes(why.empty() ? 16 : rank_program ? 40 : 3)) continue;
          const Words words = tries.WordsFor(verb, option, value);
          const Outcome done = Try(program, words);
          INFO(program << " " << verb.name << " " << words.back() << "\n" << done.ToText());
          CheckEnd(done);
          if (why.empty()) {
            CHECK_THAT(done.err,
                       !Catch::Contains(" is not an integer from ") && !Catch::Contains(" is not a number from "));
          } else {
            CHECK(done.code == 2);
            CHECK_THAT(done.err, Catch::Contains(option));
            // CLI11 itself refuses an empty text and one that looks like an option, and divides a list at its commas.
            if (!value.empty() && value != "--" && !(option == "--betas" && value.find(',') != std::string::npos))
              CHECK_THAT(done.err, Catch::Contains("'" + value + "' is not " + ToText(range)));
          }
        }
      }
    }
  }
  CHECK(options >= NumberRanges().size());  // all of the table
}

TEST_CASE("sizes that are too large are refused soon, whatever the verb") {
  Sample sample;
  const ScratchFolder folder;
  const std::string input = folder.Write("input.json", R"({"input_ids": [[1, 2]]})");
  const std::vector<Words> verbs = {{"explain", kModel},
                                    {"explain", kModel, "--json"},
                                    {"explain", kModel, "--html", folder / "report.html"},
                                    {"explain", kModel, "--memory"},
                                    {"check", kModel},
                                    {"export", kModel, "--form", "hf"},
                                    {"repl", kModel, "-c", ":cost"},
                                    {"shard", kModel, folder / "sharded"},
                                    {"eval", kModel, "--input", input, "--output", folder / "out.safetensors"},
                                    {"verify", kModel},
                                    {"verify", kModel, "--types"},
                                    {"train", kModel, "--data", input, "--steps", "1", "--batch", "1048576"}};
  for (const Words& verb : verbs) {
    for (const char* mesh : {"tp=2147483648", "tp=1048577", "tp=1048576", "dp=1048576", "dp=65537", "dp=1024,tp=1024",
                             "tp=9223372036854775807,dp=9223372036854775807", "tp=-1", "tp=nan", "tp=0x2", "tp= 2"}) {
      if (!sample.Takes(6)) continue;
      Words words = verb;
      words.insert(words.end(), {"--mesh", mesh});
      const Outcome done = Try(ExecutablePath(), words);
      INFO(verb[0] << " " << verb.back() << " --mesh " << mesh << "\n" << done.ToText());
      CheckEnd(done);
    }
  }
  const std::vector<Words> steps = {
      {"explain", kModel}, {"explain", kModel, "--memory"}, {"verify", kModel}, {"verify", kModel, "--types"}};
  for (const Words& verb : steps) {
    for (const char* tokens : {"1,1", "1048576,1", "1,16777216", "128,16777216", "1048576,16777216", "1048577,1",
                               "1,16777217", "0,1", "1,0", "99999999999,99999999999",
                               "9223372036854775807,9223372036854775807", "-1,5", "nan,1", "1", "1,2,3", ",", "1, 2"}) {
      if (!sample.Takes(4)) continue;
      Words words = verb;
      words.insert(words.end(), {"--tokens", tokens});
      const Outcome done = Try(ExecutablePath(), words);
      INFO(verb[0] << " " << verb.back() << " --tokens " << tokens << "\n" << done.ToText());
      CheckEnd(done);
    }
  }
  // Steps whose parts do not divide them, or that no machine holds.
  const std::vector<Words> trained = {{"--batch", "2", "--micro-batches", "3"},
                                      {"--batch", "1048576"},
                                      {"--batch", "3", "--mesh", "dp=2"},
                                      {"--batch", "1048576", "--sequence", "16777216"},
                                      {"--batch", "1", "--sequence", "16777216"}};
  const std::string data = folder.Write("data.txt", std::string(2000, 'a'));
  for (const Words& more : trained) {
    Words words = {"train", kParity + "llama_vocab331", "--init", "1", "--steps", "1", "--data", data};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = Try(ExecutablePath(), words);
    INFO(words.back() << "\n" << done.ToText());
    CheckEnd(done);
    CHECK(done.code != 0);
  }
}

}  // namespace
}  // namespace moonshard::test
