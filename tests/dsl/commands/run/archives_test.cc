// An exported program where MODEL stands, in every verb: an archive with weights, one without, a directory of archives,
// and a directory with --program.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/checkpoint.h"
#include "tests/dsl/commands/train/token_bytes.h"
#include "tests/support/programs.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kArchives = kParity + "programs/llama/";
const std::string kOwnOutputs = kParity + "own_modules/outputs/";

Outcome RunArchive(const Words& words) { return RunExecutable(ExecutablePath(), words, {"OMP_NUM_THREADS=1"}, 120); }

Words With(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A directory of two archives that have the weights: one for each set of inputs.
std::string DirectoryWithWeights(const ScratchFolder& scratch) {
  const std::filesystem::path directory = scratch / "archives";
  std::filesystem::create_directories(directory);
  std::filesystem::copy_file(kArchives + "with_weights.pt2", directory / "default.pt2");
  std::filesystem::copy_file(kArchives + "inputs/attention_mask.pt2", directory / "attention_mask.pt2");
  scratch.Write("archives/index.json",
                R"({"format": 1, "programs": [{"file": "default.pt2", "ranges": [[1, 64]]},
                                              {"file": "attention_mask.pt2", "ranges": [[1, 64]]}]})");
  return directory.string();
}

const std::string kLeaving = kParity + "own_modules/leaving/";

// eval writes what the model without a plan returns, whatever the plan leaves sharded.
TEST_CASE("outputs that leave as shards are gathered, and heads have any name") {
  const ScratchFolder scratch;
  struct Case {
    std::string mesh;
    Words more;
    std::string loss;  // where it comes from
  };
  for (const Case& one : std::vector<Case>{{"tp=2", {}, "next tokens"},
                                           {"tp=4", {}, "next tokens"},
                                           {"tp=2", {"--micro-batches", "2"}, "next tokens"},
                                           {"tp=2", {"--option", "sharded_logits=false"}, "model"},
                                           {"tp=1", {}, "model"}}) {
    const std::string out = scratch / "out.safetensors";
    const Outcome done = RunArchive(
        With({"eval", kLeaving + "program.pt2", "--plan", kLeaving + "plan.lua", "--mesh", one.mesh, "--input",
              kLeaving + "inputs.safetensors", "--output", out, "--stats", scratch / "stats.json", "--grads"},
             one.more));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    const Outcome compared = RunArchive({"compare", out, kLeaving + "expected.safetensors"});
    INFO(compared.ToText());
    CHECK(compared.code == 0);
    CHECK(ReadJsonFile(scratch / "stats.json").ValueOrThrow().Find("loss")->AsString() == one.loss);
  }
}

// The loss of transformers' models reads the size of the vocabulary from the config.
TEST_CASE("a model of transformers is run with sharded logits") {
  const ScratchFolder scratch;
  const Words model = {kArchives, "--program", kArchives + "program.pt2", "--mesh",
                       "tp=2",    "--option",  "loss_parallel=true"};
  const std::string out = scratch / "out.safetensors";
  const Outcome done = RunArchive(
      With(With({"eval"}, model), {"--input", kArchives + "inputs.safetensors", "--output", out, "--grads"}));
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const Outcome compared = RunArchive({"compare", out, kArchives + "expected.safetensors"});
  INFO(compared.ToText());
  CHECK(compared.code == 0);
  for (const char* verb : {"verify", "check"}) {
    const Outcome verb_done = RunArchive(With({verb}, model));
    INFO(verb_done.ToText());
    CHECK(verb_done.code == 0);
    const bool warns = verb_done.out.find("warning[MS0318]") != std::string::npos;
    CHECK(warns == (std::string(verb) == "check"));
  }
}

// The plan gathers an output at the boundary of the model itself.
TEST_CASE("an output that the model's own boundary gathers is not gathered twice") {
  const ScratchFolder scratch;
  const std::string plan = scratch.Write("plan.lua", R"(return plan {
  api = 1,
  default(replicated()),
  at("up", colwise {}),
  at("down", rowwise {}),
  at(re("^$"), style { name = "root", outputs = { { replicate, replicate }, { replicate, replicate }, { shard(-1), replicate } } }),
})");
  const std::string out = scratch / "out.safetensors";
  const Outcome done = RunArchive({"eval", kLeaving + "program.pt2", "--plan", plan, "--mesh", "tp=2", "--input",
                                   kLeaving + "inputs.safetensors", "--output", out, "--grads"});
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const Outcome compared = RunArchive({"compare", out, kLeaving + "expected.safetensors"});
  INFO(compared.ToText());
  CHECK(compared.code == 0);
}

std::vector<double> LossesIn(const std::string& log) {
  std::vector<double> out;
  std::istringstream lines(ReadWholeFile(log));
  for (std::string line; std::getline(lines, line);) {
    const JsonValue value = ParseJson(line, log).ValueOrThrow();
    if (value.Find("event")->AsString() == "step") out.push_back(value.Find("loss")->AsDouble());
  }
  return out;
}

TEST_CASE("verify and train take sharded logits of a head with another name") {
  const ScratchFolder scratch;
  const std::string tokens = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 24)));
  const Words model = {kLeaving + "program.pt2", "--plan", kLeaving + "plan.lua"};
  for (const Words& more : std::vector<Words>{{}, {"--types"}, {"--ops"}}) {
    const Outcome done = RunArchive(With(With(With({"verify"}, model), {"--mesh", "tp=2"}), more));
    INFO(done.ToText());
    CHECK(done.code == 0);
    CHECK_THAT(done.out, Contains(more == Words{"--ops"} ? "results compared" : more.empty() ? "verified" : "proven"));
  }
  std::vector<double> first;
  for (const char* mesh : {"tp=1", "tp=2"}) {
    for (const char* sharded : {"true", "false"}) {
      const Outcome done =
          RunArchive(With(With({"train"}, model),
                          {"--mesh", mesh, "--data", tokens, "--steps", "3", "--batch", "2", "--sequence", "8", "--lr",
                           "0.01", "--log", scratch / "log", "--option", std::string("sharded_logits=") + sharded}));
      INFO(done.ToText());
      REQUIRE(done.code == 0);
      const std::vector<double> losses = LossesIn(scratch / "log");
      std::filesystem::remove(scratch / "log");
      REQUIRE(losses.size() == 3);
      if (first.empty()) first = losses;
      for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(first[i]).epsilon(1e-5));
    }
  }
}

// Programs of transformers' models in tests/parity, as MODEL with --program where the archive has no weights.
struct RecordedProgram {
  Words model;
  std::string input;
  Words results;     // of eval besides the outputs
  double bound = 0;  // between two meshes
};

std::vector<RecordedProgram> RecordedPrograms() {
  std::vector<RecordedProgram> out;
  for (const auto& entry : std::filesystem::directory_iterator(kParity + "programs")) {
    const std::string directory = entry.path().string() + "/";
    if (!std::filesystem::exists(directory + "program.pt2")) continue;
    out.push_back({{directory, "--program", directory + "program.pt2"},
                   directory + "inputs.safetensors",
                   {"--grads"},
                   RecordedBound(directory + "expected.safetensors")});
  }
  for (const std::string name : {"examples/masked_lm", "examples/classifier", "examples/pairs", "examples/speech",
                                 "suggested/bloom", "suggested/bart"}) {
    // Without gradients: softmax does not depend on biases of keys, whose gradients are rounding errors. No larger than
    // kArchives.
    const std::string archive = kParity + name;
    out.push_back(
        {{archive + ".pt2"}, archive + ".safetensors", {}, RecordedBound(kArchives + "expected.safetensors")});
  }
  return out;
}

// "...; check passes on tp = 1, 2, 4"
std::vector<int> ClaimedSizes(const std::string& text) {
  const std::string before = "check passes on tp = ";
  const size_t at = text.find(before);
  REQUIRE(at != std::string::npos);
  std::istringstream sizes(text.substr(at + before.size()));
  std::vector<int> out;
  for (int size = 0; sizes >> size; sizes.ignore(1, ',')) out.push_back(size);
  return out;
}

TEST_CASE("a suggested plan holds on every tp that suggest names") {
  const std::vector<RecordedProgram> programs = RecordedPrograms();
  CHECK(programs.size() >= 20);
  for (const RecordedProgram& program : programs) {
    const ScratchFolder scratch;
    const std::string plan = scratch / "plan.lua";
    const auto on = [&](const char* verb, int tp, const Words& more) {
      const Words words = With(With({verb}, program.model), {"--plan", plan, "--mesh", "tp=" + std::to_string(tp)});
      const Outcome done = RunArchive(With(words, more));
      INFO(verb << " of " << program.input << " on tp=" << tp << ": " << done.ToText());
      CHECK(done.code == 0);
    };
    const Outcome suggested = RunArchive(With(With({"suggest"}, program.model), {"-o", plan}));
    INFO(suggested.ToText());
    REQUIRE(suggested.code == 0);
    const std::vector<int> sizes = ClaimedSizes(suggested.err);
    CHECK(sizes.front() == 1);
    CHECK(sizes.size() > 1);
    constexpr int kMostRanks = 4;
    const int most = *std::ranges::max_element(sizes, {}, [](int size) { return size <= kMostRanks ? size : 0; });
    for (const int size : sizes) {
      if (size == 1 || size == most) {
        on("eval", size, With({"--input", program.input, "--output", scratch / std::to_string(size)}, program.results));
      } else {
        on("check", size, {});
      }
    }
    std::ostringstream bound;
    bound << program.bound;
    const Outcome compared =
        RunArchive({"compare", scratch / std::to_string(most), scratch / "1", "--tolerance", bound.str()});
    INFO(compared.ToText());
    CHECK(compared.code == 0);
  }
}

// What a verb that reads weights reports where there are none.
const std::string kNone = "the program has no weights";

TEST_CASE("every verb takes an archive or a directory of archives where MODEL stands") {
  const ScratchFolder scratch;
  const std::string with_weights = kArchives + "with_weights.pt2";
  const std::string directory = DirectoryWithWeights(scratch);
  const std::string tokens = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 48)));
  const std::string input = scratch.Write("in.json", R"({"input_ids": [[3, 4, 5, 6]]})");
  struct VerbCase {
    Words verb;
    Words more;
    bool weights = false;  // whether the verb reads weights
    bool mesh = true;
    std::string expected = "";  // in what it prints, unless the weights are missing
  };
  const std::vector<VerbCase> verbs = {
      {{"explain"}, {}, false, true, "notes of the exporter:\n  6 parameters have no symbolic dim\n"},
      {{"explain"}, {"--json"}, false, true, "\"notes\": ["},
      {{"explain"}, {"--memory"}, false, true, "llama"},
      {{"explain"}, {"--html", "-"}, false, true, "<!doctype html>"},
      {{"check"}, {}, false, true, "note of the exporter: 6 parameters have no symbolic dim"},
      {{"check"}, {"--json"}, false, true, "\"notes\": ["},
      {{"export"}, {"--form", "hf"}, false, true, "q_proj"},
      {{"suggest"}, {}, false, false, "return plan {"},
      {{"repl"}, {"-c", ":flow 0"}, false, true, "in the order of the program's calls"},
      {{"verify"}, {"--types"}, false, true, "proven"},
      {{"verify"}, {}, true, true, "verified"},
      {{"verify"}, {"--ops"}, true, true, "operators:"},
      {{"eval"}, {"--input", input, "--output", scratch / "out.safetensors", "--grads"}, true, true, ""},
      {{"train"}, {"--data", tokens, "--steps", "1", "--batch", "2", "--sequence", "8"}, true, true, ""},
      {{"train"},
       {"--data", tokens, "--steps", "1", "--batch", "2", "--sequence", "8", "--init", "1"},
       false,
       true,
       ""},
      {{"shard"}, {"--replace"}, true, true, ""},
  };
  struct ModelCase {
    Words model;
    bool weights;
  };
  for (const ModelCase& model : std::vector<ModelCase>{{{with_weights}, true},
                                                       {{directory}, true},
                                                       {{kArchives + "program.pt2"}, false},
                                                       {{kArchives + "inputs"}, false},
                                                       {{kArchives, "--program", kArchives + "program.pt2"}, true},
                                                       {{kArchives, "--program", kArchives + "inputs"}, true}}) {
    for (const VerbCase& verb : verbs) {
      Words words = verb.verb;
      words.push_back(model.model.front());
      if (verb.verb.front() == "shard") words.push_back(scratch / "sharded");
      words.insert(words.end(), model.model.begin() + 1, model.model.end());
      words = With(words, verb.more);
      if (verb.mesh) words = With(words, {"--mesh", "tp=2"});
      const Outcome done = RunArchive(words);
      INFO(verb.verb.front() << " " << done.ToText());
      if (verb.weights && !model.weights) {
        CHECK(done.code == 2);
        CHECK_THAT(done.err, Contains("error[MS0406]: " + kNone) && Contains("--program") && Contains("--weights"));
      } else {
        CHECK(done.code == 0);
        CHECK_THAT(done.out + done.err, Contains(verb.expected));
      }
    }
  }
}

TEST_CASE("a program needs no plan on one rank") {
  const ScratchFolder scratch;
  // No shipped plan has its class, and its modules have names that tell nothing.
  const std::string unnamed = SourcePath("tests/dsl/planning/suggest/unnamed.pt2");
  const std::string out = scratch / "out.safetensors";
  for (const Words& words :
       {Words{"explain", unnamed}, Words{"check", unnamed, "--strict"},
        Words{"eval", kOwnOutputs + "program.pt2", "--input", kOwnOutputs + "inputs.safetensors", "--output", out},
        Words{"verify", kOwnOutputs + "program.pt2"}}) {
    const Outcome done = RunArchive(words);
    INFO(done.ToText());
    CHECK(done.code == 0);
    CHECK_THAT(done.out + done.err, !Contains("MS0"));
  }
}

// The plan of the program with several outputs.
std::string PlanOfOutputs(const ScratchFolder& scratch) {
  return scratch.Write("outputs.lua", "return plan { at(\"up\", colwise {}), at(\"down\", rowwise {}) }\n");
}

TEST_CASE("eval writes every output that the program names") {
  const ScratchFolder scratch;
  const std::string expected = kOwnOutputs + "expected.safetensors";
  const std::string out = scratch / "out.safetensors";
  const Words eval = {"eval",    kOwnOutputs + "program.pt2",        "--plan",   PlanOfOutputs(scratch),
                      "--input", kOwnOutputs + "inputs.safetensors", "--output", out};
  for (const char* mesh : {"tp=1", "tp=2"}) {
    const Outcome done = RunArchive(With(eval, {"--mesh", mesh, "--grads"}));
    INFO(mesh << " " << done.ToText());
    REQUIRE(done.code == 0);
    std::ostringstream bound;
    bound << RecordedBound(expected);
    const Outcome compared = RunArchive({"compare", out, expected, "--tolerance", bound.str()});
    INFO(compared.ToText());
    CHECK(compared.code == 0);
    const Checkpoint written = Checkpoint::OpenFile(out).ValueOrThrow();
    for (const char* name : {"loss", "logits", "hidden", "aux_loss", "tokens"}) {
      INFO(name);
      CHECK(written.Find(name) != nullptr);
    }
    CHECK(written.Find("tokens")->dtype == DType::kI64);
  }
  const Outcome parts = RunArchive(With(eval, {"--micro-batches", "2"}));
  INFO(parts.ToText());
  REQUIRE(parts.code == 0);
  CHECK_THAT(parts.err, Contains("warning[MS0506]: outputs without a row for each sequence are not written: aux_loss"));
  const Checkpoint of_parts = Checkpoint::OpenFile(out).ValueOrThrow();
  CHECK(of_parts.Find("aux_loss") == nullptr);
  REQUIRE(of_parts.Find("hidden") != nullptr);
  CHECK(of_parts.Find("hidden")->shape == std::vector<int64_t>{4, 6, 8});
}

TEST_CASE("a program without a config is trained, and its steps merge into a directory") {
  const ScratchFolder scratch;
  const std::string tokens = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 24)));
  const Words train = {"train",      kOwnOutputs + "program.pt2",
                       "--plan",     PlanOfOutputs(scratch),
                       "--mesh",     "tp=2",
                       "--data",     tokens,
                       "--batch",    "2",
                       "--sequence", "8",
                       "--steps",    "2",
                       "--save",     scratch / "run"};
  const Outcome done = RunArchive(train);
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const Outcome merged = RunArchive({"merge", scratch / "run/step_00000002", scratch / "merged"});
  INFO(merged.ToText());
  REQUIRE(merged.code == 0);
  CHECK_FALSE(std::filesystem::exists(scratch / "merged/config.json"));
  CHECK(Checkpoint::Open(scratch / "merged").ValueOrThrow().Find("up.weight") != nullptr);
  Words more = train;
  more[13] = "3";
  const Outcome resumed = RunArchive(With(more, {"--resume"}));
  INFO(resumed.ToText());
  CHECK(resumed.code == 0);
  // Ids beyond the vocabulary are found by the sizes of the program.
  more = With(train, {"--init", "1"});
  more[7] = scratch.Write("wide.bin", RawTokens<uint16_t>(SomeTokens(400, 48)));
  more[15] = scratch / "other";
  const Outcome wide = RunArchive(more);
  CHECK(wide.code != 0);
  CHECK_THAT(wide.err, Contains("outside the vocabulary") && Contains("0 to 23"));
}

// The bytes of a tensor in a safetensors file of a directory.
std::string BytesOfTensor(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor* tensor = checkpoint.Find(name);
  REQUIRE(tensor != nullptr);
  return ReadWholeFile(checkpoint.files()[tensor->file].path).substr(tensor->begin, tensor->bytes);
}

TEST_CASE("shard reads the weights of an archive, and merge writes them as a model directory") {
  struct ShardCase {
    std::string program;
    Words plan;
    bool config;
    std::string directory;  // with the same weights; "": none
  };
  const ScratchFolder plans;
  for (const ShardCase& one : {ShardCase{kArchives + "with_weights.pt2", {}, true, kArchives},
                               ShardCase{kOwnOutputs + "program.pt2", {"--plan", PlanOfOutputs(plans)}, false, ""}}) {
    for (const char* mesh : {"tp=1", "tp=2", "dp=2,tp=2"}) {
      INFO(one.program << " " << mesh);
      const ScratchFolder scratch;
      const Words shard = With({"shard", one.program, scratch / "sharded", "--mesh", mesh}, one.plan);
      const Outcome done = RunArchive(shard);
      INFO(done.ToText());
      REQUIRE(done.code == 0);
      const Outcome again = RunArchive(shard);
      INFO(again.ToText());
      CHECK(again.code == 0);
      CHECK_THAT(again.err, Contains("the complete output already exists"));
      const Outcome merged = RunArchive({"merge", scratch / "sharded", scratch / "merged"});
      INFO(merged.ToText());
      REQUIRE(merged.code == 0);
      CHECK(std::filesystem::exists(scratch / "merged/config.json") == one.config);
      const Checkpoint after = Checkpoint::Open(scratch / "merged").ValueOrThrow();
      if (one.directory.empty()) {
        // Tied weights are stored once, buffers too.
        CHECK(after.tensors().size() == 8);
        CHECK(after.Find("scale") != nullptr);
        CHECK(after.Find("lm_head.weight") == nullptr);
      } else {
        const Checkpoint before = Checkpoint::Open(one.directory).ValueOrThrow();
        REQUIRE(after.tensors().size() == before.tensors().size());
        for (const StoredTensor& tensor : before.tensors()) {
          INFO(tensor.name);
          CHECK(BytesOfTensor(after, tensor.name) == BytesOfTensor(before, tensor.name));
        }
      }
      // With the program beside it, the merged directory is the model again.
      if (!one.config) continue;
      const std::string input = kArchives + "inputs.safetensors";
      const Outcome eval = RunArchive({"eval", scratch / "merged", "--program", kArchives + "program.pt2", "--input",
                                       input, "--output", scratch / "out.safetensors"});
      INFO(eval.ToText());
      CHECK(eval.code == 0);
    }
  }
}

TEST_CASE("a directory with archives but without their index is refused, with the archives") {
  const ScratchFolder scratch;
  scratch.Write("default.pt2", "");
  scratch.Write("position_ids.pt2", "");
  for (const char* verb : {"explain", "check", "suggest"}) {
    const Outcome done = RunArchive({verb, scratch.path()});
    INFO(done.ToText());
    CHECK(done.code != 0);
    CHECK_THAT(done.out + done.err,
               Contains("the directory has archives of programs (default.pt2, position_ids.pt2) but no index.json") &&
                   Contains("one of the archives as MODEL"));
  }
}

TEST_CASE("two programs for one model are refused") {
  const std::string program = kArchives + "program.pt2";
  const Outcome two = RunArchive({"check", kArchives + "with_weights.pt2", "--program", program});
  INFO(two.ToText());
  CHECK(two.code == 1);
  CHECK_THAT(two.out, Contains("error[MS0107]: MODEL and --program are two exported programs"));
  CHECK(RunArchive({"check", program, "--program", program}).code == 0);
  const Outcome folder = RunArchive({"check", kArchives, "--program", kArchives});
  INFO(folder.ToText());
  CHECK(folder.code == 1);
  CHECK_THAT(folder.out, Contains("a directory of archives with its index.json"));
}

}  // namespace
}  // namespace moonshard::test
