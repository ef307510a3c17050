// `train` with the loss that a program computes itself.
#include <catch2/catch.hpp>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "engine/io/safetensors/checkpoint.h"
#include "tests/dsl/commands/train/runs.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kBalanced = SourcePath("tests/parity/own_modules/balanced/");  // a vocabulary of 24

Words TrainBalanced(const std::string& data, const Words& more) {
  Words words = {"train", kBalanced + "program.pt2", "--plan", kBalanced + "plan.lua", "--data", data, "--sequence",
                 "6"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The loss that `eval` reports for one row: the program's own.
double LossOfEval(const ScratchFolder& scratch, const std::vector<int64_t>& row) {
  std::string text;
  for (const int64_t token : row) text += (text.empty() ? "[[" : ", ") + std::to_string(token);
  text += "]]";
  const std::string out = scratch / "loss.safetensors";
  const Outcome done = RunTraining(
      {"eval", kBalanced + "program.pt2", "--input",
       scratch.Write("row.json", "{\"input_ids\": " + text + ", \"labels\": " + text + "}"), "--output", out});
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const Checkpoint file = Checkpoint::OpenFile(out).ValueOrThrow();
  float loss = 0;
  std::memcpy(&loss, ReadWholeFile(out).data() + file.Find("loss")->begin, sizeof loss);
  return loss;
}

// expected.safetensors: what PyTorch computed, without a plan.
TEST_CASE("a loss with an auxiliary term has PyTorch's value and gradients") {
  const ScratchFolder scratch;
  const std::string expected = kBalanced + "expected.safetensors";
  std::ostringstream bound;
  bound << RecordedBound(expected);
  for (const Words& mesh : std::vector<Words>{{"--mesh", "tp=1"}, {"--mesh", "tp=2"}, {"--mesh", "dp=2,tp=2"}}) {
    const std::string out = scratch / "out.safetensors";
    Words words = {"eval",     kBalanced + "program.pt2",
                   "--plan",   kBalanced + "plan.lua",
                   "--input",  kBalanced + "inputs.safetensors",
                   "--output", out,
                   "--grads",  "--stats",
                   "-"};
    words.insert(words.end(), mesh.begin(), mesh.end());
    const Outcome done = RunTraining(words);
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    CHECK_THAT(done.out, Contains("\"loss\": \"model\""));
    const Outcome compared = RunTraining({"compare", out, expected, "--tolerance", bound.str()});
    INFO(compared.ToText());
    CHECK(compared.code == 0);
  }
}

TEST_CASE("a program is trained with its own loss, the same on every mesh") {
  const ScratchFolder scratch;
  const std::vector<int64_t> row = SomeTokens(7, 24);
  const std::string one = scratch.Write("one.bin", RawTokens<uint16_t>(row));
  const std::string log = scratch / "log";
  const Outcome done = RunTraining(TrainBalanced(
      one, {"--loss", "model", "--batch", "1", "--steps", "1", "--eval-data", one, "--lr", "0", "--log", log}));
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const double expected = LossOfEval(scratch, {row.begin(), row.end() - 1});
  CHECK(Losses(log).at(0) == Approx(expected).epsilon(1e-6));
  CHECK(LogLines(log, "eval").at(0).Find("loss")->AsDouble() == Approx(expected).epsilon(1e-6));
  CHECK(LogLines(log, "end").at(0).Find("loss_of")->AsString() == "model");

  const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 24)));
  std::vector<double> first;
  for (const Words& mesh : std::vector<Words>{{"--mesh", "tp=1"},
                                              {"--mesh", "tp=2"},
                                              {"--mesh", "tp=2", "--micro-batches", "2"},
                                              {"--mesh", "dp=2,tp=2"}}) {
    const std::string of_mesh = scratch / (mesh[1] + "." + std::to_string(mesh.size()) + ".log");
    Words words =
        TrainBalanced(data, {"--loss", "model", "--batch", "4", "--steps", "5", "--lr", "0.01", "--log", of_mesh});
    words.insert(words.end(), mesh.begin(), mesh.end());
    const Outcome run = RunTraining(words);
    INFO(run.ToText());
    REQUIRE(run.code == 0);
    const std::vector<double> losses = Losses(of_mesh);
    REQUIRE(losses.size() == 5);
    if (first.empty()) first = losses;
    for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(first[i]).epsilon(1e-5));
  }
  CHECK(first.back() < first.front());
}

TEST_CASE("the loss of a program must be asked for, and exist") {
  const ScratchFolder scratch;
  const std::string data = scratch.Write("balanced.bin", RawTokens<uint16_t>(SomeTokens(400, 24)));
  struct Case {
    Words words;
    std::string expected;
  };
  for (const Case& one : std::vector<Case>{
           {TrainBalanced(data, {"--steps", "1"}),
            "required: a causal language model whose loss is the mean over the next "},
           {TrainBalanced(data,
                          {"--steps", "1", "--loss", "model", "--mesh", "tp=2", "--option", "sharded_logits=true"}),
            "the loss depends on all logits of a token"},
           {TrainBalanced(data, {"--steps", "1", "--loss", "model", "--loss-chunk", "2"}),
            "the loss of the model cannot be computed in chunks"},
           {TrainWords(scratch, {"--steps", "1", "--loss", "model"}), "the model does not compute a loss itself"}}) {
    const Outcome done = RunTraining(one.words);
    INFO(done.ToText());
    CHECK(done.code != 0);
    CHECK_THAT(done.err, Contains(one.expected));
  }
}

}  // namespace
}  // namespace moonshard::test
