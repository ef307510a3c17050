// `train` of programs that take more than tokens, on files of examples: the numbers of PyTorch however a batch is
// divided, whatever its labels ignore; runs that resume; and what is said of files that do not fit.
#include <catch2/catch.hpp>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/io/safetensors/checkpoint.h"
#include "tests/dsl/commands/train/runs.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kExamples = SourcePath("tests/parity/examples/");  // 12 examples each
const std::string kProgramFixtures = SourcePath("tests/parity/programs/");

void Add(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

Words TrainOn(const std::string& name, const std::string& data, const Words& more) {
  Words words = {"train", kExamples + name + ".pt2", "--data", data};
  Add(words, more);
  return words;
}

Words TrainOn(const std::string& name, const Words& more) {
  return TrainOn(name, kExamples + name + ".safetensors", more);
}

Outcome RunGood(const Words& words) {
  Outcome done = RunTraining(words);
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  return done;
}

double NumberIn(const std::string& path, const std::string& name) {
  const Checkpoint file = Checkpoint::OpenFile(path).ValueOrThrow();
  float number = 0;
  std::memcpy(&number, ReadWholeFile(path).data() + file.Find(name)->begin, sizeof number);
  return number;
}

// A plan for more than one rank: replicas whose gradients are averaged, or shards of parameters.
std::string PlanOf(const ScratchFolder& scratch, const std::string& name, const std::string& section) {
  const bool bert = name == "masked_lm" || name == "pairs";
  const std::string base = bert ? "extends \"bert\"" : "api = 1, default(replicated())";
  return scratch.Write(name + "_" + section.substr(0, 4) + ".lua", "return plan { " + base + ", " + section + " }\n");
}

TEST_CASE("the loss and the gradient of a batch are those of PyTorch, however the batch is divided") {
  for (const char* name : {"masked_lm", "classifier", "regression", "pairs", "speech"}) {
    const ScratchFolder scratch;
    const std::string replicas = PlanOf(scratch, name, "ddp {}");
    const std::string shards = PlanOf(scratch, name, "fsdp {}");
    const double loss = NumberIn(kExamples + name + ".expected.safetensors", "loss");
    const double norm = NumberIn(kExamples + name + ".expected.safetensors", "grad_norm");
    std::vector<Words> divisions = {{},
                                    {"--micro-batches", "3"},
                                    {"--micro-batches", "12"},  // the first examples have no label that counts
                                    {"--mesh", "dp=2", "--plan", replicas},
                                    {"--mesh", "dp=2", "--plan", replicas, "--micro-batches", "6"},
                                    {"--mesh", "dp=2", "--plan", shards, "--micro-batches", "2"},
                                    {"--mesh", "tp=2", "--plan", replicas, "--micro-batches", "2"},
                                    {"--mesh", "dp=2,tp=2", "--plan", replicas, "--micro-batches", "3"}};
    std::vector<double> first;
    for (size_t i = 0; i < divisions.size(); ++i) {
      const std::string log = scratch / (std::to_string(i) + ".log");
      Words words = TrainOn(name, {"--steps", "3", "--batch", "12", "--lr", "0.01", "--log", log});
      Add(words, divisions[i]);
      const Outcome done = RunGood(words);
      INFO(name << " " << i << done.ToText());
      const std::vector<JsonValue> steps = LogLines(log);
      REQUIRE(steps.size() == 3);
      CHECK(steps[0].Find("loss")->AsDouble() == Approx(loss).epsilon(1e-5));
      CHECK(steps[0].Find("grad_norm")->AsDouble() == Approx(norm).epsilon(1e-5));
      CHECK(steps[0].Find("examples")->AsInt() == 12);
      CHECK(steps[0].Find("examples_per_s")->AsDouble() > 0);
      CHECK(steps[0].Find("tokens") == nullptr);
      const std::vector<double> losses = Losses(log);
      if (first.empty()) first = losses;
      for (size_t step = 0; step < losses.size(); ++step) CHECK(losses[step] == Approx(first[step]).epsilon(1e-4));
    }
    CHECK(first.back() < first.front());
  }
}

TEST_CASE("the first step's loss is that which eval computes from the same file") {
  const std::string t5 = kProgramFixtures + "t5";
  const std::string sets = kProgramFixtures + "llama/inputs/";
  const std::string causal = kProgramFixtures + "llama";
  struct Case {
    Words model;
    std::string data;
    std::string rows;
  };
  for (const Case& one :
       std::vector<Case>{{{kExamples + "masked_lm.pt2"}, kExamples + "masked_lm.safetensors", "12"},
                         {{kExamples + "classifier.pt2"}, kExamples + "classifier.safetensors", "12"},
                         {{kExamples + "pairs.pt2"}, kExamples + "pairs.safetensors", "12"},
                         {{kExamples + "speech.pt2"}, kExamples + "speech.safetensors", "12"},
                         {{t5, "--program", t5 + "/program.pt2"}, t5 + "/inputs.safetensors", "4"},
                         {{causal, "--program", sets}, sets + "attention_mask.inputs.safetensors", "3"},
                         {{causal, "--program", sets}, sets + "default.inputs.safetensors", "3"}}) {
    const ScratchFolder scratch;
    const auto with = [&](const std::string& verb, const Words& more) {
      Words words = {verb};
      Add(words, one.model);
      Add(words, more);
      return words;
    };
    RunGood(with("eval", {"--input", one.data, "--output", scratch / "out.safetensors"}));
    const double expected = NumberIn(scratch / "out.safetensors", "loss");
    for (const char* mesh : {"tp=1", "tp=2"}) {
      INFO(one.data << " " << mesh);
      const std::string log = scratch / (std::string(mesh) + ".log");
      RunGood(with("train", {"--data", one.data, "--batch", one.rows, "--steps", "1", "--mesh", mesh, "--lr", "0",
                             "--log", log, "--eval-data", one.data}));
      CHECK(Losses(log).at(0) == Approx(expected).epsilon(1e-5));
      CHECK(LogLines(log, "eval").at(0).Find("loss")->AsDouble() == Approx(expected).epsilon(1e-5));
    }
  }
}

TEST_CASE("a loss of the next tokens is weighted without the first label of each row") {
  const ScratchFolder scratch;
  std::string ids;
  std::string labels;
  for (const std::vector<int64_t>& row :
       std::vector<std::vector<int64_t>>{{3, 4, 5, 6}, {7, 8, 9, 10}, {11, 12, 13, 14}, {15, 16, 17, 18}}) {
    ids += RawTokens<int64_t>(row);
  }
  // One label that is the first of its row, three, two, and none.
  for (const std::vector<int64_t>& row : std::vector<std::vector<int64_t>>{
           {3, -100, -100, -100}, {7, 8, 9, 10}, {-100, 12, 13, -100}, {-100, -100, -100, -100}}) {
    labels += RawTokens<int64_t>(row);
  }
  const std::string data = scratch.Write(
      "rows.safetensors", TensorFile({{"input_ids", "I64", "[4,4]", ids}, {"labels", "I64", "[4,4]", labels}}));
  const std::string llama = kProgramFixtures + "llama";
  std::vector<double> losses;
  std::vector<double> norms;
  for (const Words& division : std::vector<Words>{{}, {"--micro-batches", "4"}, {"--mesh", "dp=2"}}) {
    const std::string log = scratch / (std::to_string(losses.size()) + ".log");
    Words words = {"train", llama, "--program", llama + "/program.pt2", "--data", data, "--batch", "4", "--steps", "1"};
    Add(words, {"--log", log});
    Add(words, division);
    RunGood(words);
    losses.push_back(Losses(log).at(0));
    norms.push_back(LogLines(log).at(0).Find("grad_norm")->AsDouble());
  }
  for (size_t i = 1; i < losses.size(); ++i) {
    CHECK(losses[i] == Approx(losses[0]).epsilon(1e-5));
    CHECK(norms[i] == Approx(norms[0]).epsilon(1e-5));
  }
}

TEST_CASE("held-out examples: every example counts once, and the rows that miss in the last part are not made up") {
  for (const char* name : {"masked_lm", "regression"}) {
    const ScratchFolder scratch;
    const double loss = NumberIn(kExamples + name + ".expected.safetensors", "loss");
    // Of 12 rows in parts of 8, the second rank has none of the last four, and of those of 10 in the second part neither more than two.
    for (const char* batch : {"8", "10"}) {
      for (const Words& mesh : std::vector<Words>{{}, {"--mesh", "dp=2", "--plan", PlanOf(scratch, name, "ddp {}")}}) {
        const std::string log = scratch / (std::string(batch) + std::to_string(mesh.size()) + ".log");
        Words words = TrainOn(name, {"--steps", "1", "--batch", batch, "--lr", "0", "--log", log, "--eval-data",
                                     kExamples + name + ".safetensors"});
        Add(words, mesh);
        RunGood(words);
        CHECK(LogLines(log, "eval").at(0).Find("loss")->AsDouble() == Approx(loss).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("a run on examples resumes to the bit, in the order of the run, and not on other data") {
  const ScratchFolder scratch;
  const auto words = [&](const std::string& name, const Words& more) {
    Words out = TrainOn("classifier", {"--batch", "8", "--steps", "6", "--save-every", "3", "--keep", "0", "--save",
                                       scratch / name, "--log", scratch / (name + ".log")});
    Add(out, more);
    return out;
  };
  RunGood(words("whole", {}));
  std::filesystem::create_directories(scratch / "part");
  std::filesystem::copy(scratch / "whole/step_00000003", scratch / "part/step_00000003",
                        std::filesystem::copy_options::recursive);
  const Outcome resumed = RunGood(words("part", {"--resume"}));
  CHECK_THAT(resumed.err, Contains("resumed after step 3"));
  CHECK(Losses(scratch / "part.log").size() == 3);
  CHECK_THAT(Numbers(scratch / "whole.log"), Catch::EndsWith(Numbers(scratch / "part.log")));
  std::filesystem::create_directories(scratch / "other");
  std::filesystem::copy(scratch / "whole/step_00000003", scratch / "other/step_00000003",
                        std::filesystem::copy_options::recursive);
  std::string bytes = ReadWholeFile(kExamples + "classifier.safetensors");
  bytes[bytes.size() - 4] = static_cast<char>(bytes[bytes.size() - 4] ^ 1);  // a pixel
  Words other = words("other", {"--resume"});
  *(std::ranges::find(other, "--data") + 1) = scratch.Write("classifier.safetensors", bytes);
  const Outcome refused = RunTraining(other);
  INFO(refused.ToText());
  CHECK(refused.code != 0);
  CHECK_THAT(refused.err, Contains("the run was saved with other data: --data differs"));
}

TEST_CASE("a step whose labels are all ignored is skipped, and says so") {
  const ScratchFolder scratch;
  const std::string none =
      scratch.Write("none.safetensors",
                    TensorFile({{"input_ids", "I64", "[2,3]", RawTokens<int64_t>({5, 6, 7, 8, 9, 10})},
                                {"attention_mask", "U8", "[2,3]", std::string(6, 1)},
                                {"labels", "I64", "[2,3]", RawTokens<int64_t>({-100, -100, -100, -100, -100, -100})}}));
  const std::string log = scratch / "log";
  Words words = TrainOn("masked_lm", none, {"--steps", "1", "--batch", "2", "--log", log});
  const Outcome done = RunGood(words);
  CHECK(LogLines(log).at(0).Find("skipped")->AsBool());
  CHECK_THAT(done.err, Contains("no label of the batch counts"));
}

// The square of 1e30 is no float32, its derivative is one.
TEST_CASE("a step whose loss alone is not finite is skipped, whether the host or the device decides") {
  const ScratchFolder scratch;
  std::vector<float> features(size_t{8} * 6);
  for (size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>(i % 7) / 7;
  std::vector<float> labels(size_t{8} * 2, 0.5F);
  labels[9] = 1e30F;  // of the fifth of eight rows
  const auto bytes = [](const std::vector<float>& numbers) {
    return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  };
  const std::string data = scratch.Write("data.safetensors", TensorFile({{"features", "F32", "[8,6]", bytes(features)},
                                                                         {"labels", "F32", "[8,2]", bytes(labels)}}));
  for (const Words& mesh :
       std::vector<Words>{{}, {"--mesh", "dp=2", "--plan", PlanOf(scratch, "regression", "ddp {}")}}) {
    std::vector<std::vector<std::string>> skipped(2);
    std::vector<JsonValue> last;
    for (const std::string ahead : {"0", "1"}) {
      const std::string log = scratch / (ahead + std::to_string(mesh.size()));
      Words words = TrainOn("regression", data, {"--steps", "6", "--batch", "4", "--ahead", ahead, "--log", log});
      Add(words, mesh);
      const Outcome done = RunGood(words);
      CHECK_THAT(done.err, Contains("has loss inf and a gradient norm of ") && !Contains("a gradient norm of nan"));
      for (const JsonValue& step : LogLines(log)) {
        skipped[ahead == "1" ? 1 : 0].emplace_back(step.Find("skipped")->AsBool() ? "skipped" : "taken");
      }
      last.push_back(LogLines(log).back());
    }
    CHECK(std::ranges::count(skipped[0], "skipped") == 3);
    CHECK(skipped[0] == skipped[1]);
    CHECK(WriteJson(*last[0].Find("loss"), 0).substr(0, 6) == WriteJson(*last[1].Find("loss"), 0).substr(0, 6));
  }
}

TEST_CASE("files of examples that do not fit the program are refused before the first step") {
  const ScratchFolder scratch;
  const std::string ids = RawTokens<int64_t>({5, 6, 7, 8, 9, 10});
  const std::string ones = RawTokens<int64_t>({1, 1, 1, 1, 1, 1});
  const TensorText input = {"input_ids", "I64", "[2,3]", ids};
  const TensorText mask = {"attention_mask", "I64", "[2,3]", ones};
  const TensorText labels = {"labels", "I64", "[2,3]", ids};
  int files = 0;
  const auto file = [&](const std::vector<TensorText>& tensors) {
    return scratch.Write(std::to_string(files++) + ".safetensors", TensorFile(tensors));
  };
  const std::string good = file({input, mask, labels});
  const std::string tokens = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 48)));
  struct Case {
    Words words;
    Words said;
  };
  const Words run = {"--steps", "1", "--batch", "2"};
  const auto masked = [&](const std::string& data, const Words& more = {}) {
    Words words = TrainOn("masked_lm", data, run);
    Add(words, more);
    return words;
  };
  const std::vector<Case> cases = {
      {masked(file({input, mask, labels, {"token_type_ids", "I64", "[2,3]", ones}})),
       {"MS0508", "the program does not take 'token_type_ids'", "input_ids, attention_mask, labels", "--inputs"}},
      {masked(file({{"input_idz", "I64", "[2,3]", ids}, mask, labels})),
       {"the input file has no 'input_ids'", "the program does not take 'input_idz'", "did you mean 'input_ids'?"}},
      {masked(file({input, labels})), {"the input file has no 'attention_mask'", "int64 [any, any]"}},
      {masked(file({input, mask, {"labels", "F32", "[2,3]", std::string(24, '\0')}})), {"'labels' is of type Float"}},
      {masked(file({input, mask, {"labels", "I64", "[3,2]", ids}})),
       {"'labels' has 3 rows", "the same number of rows in all tensors"}},
      {masked(file({input, mask, {"labels", "I64", "[2,2]", RawTokens<int64_t>({5, 6, 7, 8})}})),
       {"the input 'labels' has the shape [2, 2]", "[2, 3]: a label for each row of the logits"}},
      {masked(file({{"input_ids", "I64", "[2]", RawTokens<int64_t>({5, 6})}, mask, labels})),
       {"the input 'input_ids' has the shape [2]"}},
      {masked(file({{"input_ids", "I64", "[]", RawTokens<int64_t>({5})}, mask, labels})), {"'input_ids' has no dims"}},
      {masked(file({{"input_ids", "I64", "[0,3]", ""},
                    {"attention_mask", "I64", "[0,3]", ""},
                    {"labels", "I64", "[0,3]", ""}})),
       {"the file has no rows"}},
      {masked(file({{"input_ids", "I64", "[2,3]", RawTokens<int64_t>({5, 6, 7, 8, 99, 10})}, mask, labels})),
       {"'input_ids' has ids outside the vocabulary", "[1, 1] is 99", "ids from 0 to 47"}},
      {masked(file({input, mask, {"labels", "I64", "[2,3]", RawTokens<int64_t>({5, -100, 7, 8, -1, 10})}})),
       {"'labels' has ids outside the vocabulary", "[1, 1] is -1", "or -100 for no label"}},
      {masked(good, {"--data", tokens}), {"the data has files of tokens and files of examples", "tokens.bin"}},
      {masked(good,
              {"--data", file({input, mask, {"labels", "I32", "[2,3]", RawTokens<int32_t>({5, 6, 7, 8, 9, 10})}})}),
       {"a row of 'labels' is int32 [3], in the first file it is int64"}},
      {masked(good, {"--eval-data", tokens}), {"the held-out data are tokens, and the training data are examples"}},
      {masked(good, {"--sequence", "4"}), {"examples have the lengths of their tensors", "no --sequence"}},
      {masked(good, {"--loss-chunk", "4"}), {"cannot be computed in chunks of tokens", "no --loss-chunk"}},
      {masked(good, {"--loss", "next-tokens"}),
       {"examples are trained with the loss that the program computes", "--loss model"}},
      {masked(good, {"--micro-batches", "4"}), {"a batch of 2 is not divisible"}},
      {masked("/nowhere/a.safetensors"), {"MS0401", "/nowhere/a.safetensors"}},
      {TrainOn("classifier",
               file({{"pixel_values", "F32", "[2,3,4,4]", std::string(384, '\0')},
                     {"labels", "I64", "[2]", RawTokens<int64_t>({0, 1})}}),
               run),
       {"the input 'pixel_values' has the shape [2, 3, 4, 4]"}},
      {TrainOn("classifier",
               file({{"pixel_values", "F32", "[1,3,8,8]", std::string(768, '\0')},
                     {"labels", "I64", "[1]", RawTokens<int64_t>({5})}}),
               {"--steps", "1", "--batch", "1"}),
       {"'labels' has ids outside the vocabulary", "[0] is 5", "ids from 0 to 4"}},
      {{"train", SourcePath("tests/parity/own_modules/nested/program.pt2"), "--data",
        SourcePath("tests/parity/own_modules/nested/inputs.safetensors"), "--steps", "1", "--batch", "1"},
       {"MS0506", "the program does not compute a loss", "exported with its labels"}},
      {TrainWords(scratch, {"--data", good, "--steps", "1"}), {"the file has no tensor 'tokens'"}},
  };
  for (const Case& one : cases) {
    const Outcome done = RunTraining(one.words);
    INFO(done.ToText());
    CHECK(done.code != 0);
    CHECK_THAT(done.err, !Contains("step 1/1"));
    for (const std::string& said : one.said) CHECK_THAT(done.err, Contains(said));
  }
}

TEST_CASE("an error in the examples of one rank ends all ranks with that error") {
  const ScratchFolder scratch;
  const auto file = [&](int64_t rows) {
    const std::string shape = "[" + std::to_string(rows) + ",6]";
    const std::string ids = RawTokens<int64_t>(SomeTokens(rows * 6, 24));
    return scratch.Write(std::to_string(rows) + ".safetensors",
                         TensorFile({{"input_ids", "I64", shape, ids}, {"labels", "I64", shape, ids}}));
  };
  // The program takes two rows; of three held-out rows the second rank has one.
  const Outcome done = RunTraining({"train", SourcePath("tests/parity/own_modules/modes/program.pt2"), "--data",
                                    file(8), "--eval-data", file(3), "--mesh", "dp=2", "--plan",
                                    PlanOf(scratch, "modes", "ddp {}"), "--steps", "1", "--batch", "4"});
  INFO(done.ToText());
  CHECK(done.code != 0);
  CHECK_THAT(done.err, Contains("--eval-data: the input 'input_ids' has the shape [1, 6]") && Contains("rank 1"));
  CHECK_THAT(done.err, !Contains("step 1/1"));
}

}  // namespace
}  // namespace moonshard::test
