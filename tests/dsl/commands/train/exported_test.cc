// Exported programs through the verbs: inputs by name, dtypes, weights from a directory or from the archive, and a
// training run that comes back under the names of the checkpoint.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/io/exported_program/program_archive.h"
#include "engine/io/safetensors/checkpoint.h"
#include "tests/dsl/commands/train/runs.h"
#include "tests/engine/io/exported_program/stored_zip.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kPrograms = SourcePath("tests/parity/programs/");
const std::string kDTypes = SourcePath("tests/parity/programs/dtypes/");

Outcome RunHere(const Words& words) { return RunExecutable(ExecutablePath(), words, {"OMP_NUM_THREADS=1"}, 120); }

void ExpectGood(const Outcome& done) {
  INFO(done.ToText());
  REQUIRE(done.code == 0);
}

// The plan that suggest writes for a program.
std::string SuggestedPlan(const ScratchFolder& scratch, const std::string& program) {
  std::string plan = scratch / "plan.lua";
  ExpectGood(RunHere({"suggest", program, "-o", plan, "--replace"}));
  return plan;
}

// What `compare` finds between a file of eval and recorded numbers.
void ExpectNumbers(const std::string& got, const std::string& expected, double bound) {
  std::ostringstream tolerance;
  tolerance << bound;
  const Outcome compared = RunHere({"compare", got, expected, "--tolerance", tolerance.str()});
  INFO(compared.ToText());
  CHECK(compared.code == 0);
}

TEST_CASE("a program that is no causal language model takes every input by name") {
  for (const char* name : {"t5", "qwen2_5_vl"}) {
    const std::string model = kPrograms + name;
    const std::string program = model + "/program.pt2";
    const ScratchFolder scratch;
    const std::string plan = SuggestedPlan(scratch, program);
    for (const char* mesh : {"tp=1", "tp=2"}) {
      INFO(name << " " << mesh);
      const std::string out = scratch / "out.safetensors";
      ExpectGood(RunHere({"eval", model, "--program", program, "--mesh", mesh, "--plan", plan, "--input",
                          model + "/inputs.safetensors", "--output", out, "--grads"}));
      ExpectNumbers(out, model + "/expected.safetensors", RecordedBound(model + "/expected.safetensors"));
      if (std::string(name) == "t5")
        CHECK(Checkpoint::OpenFile(out).ValueOrThrow().Find("encoder_last_hidden_state") != nullptr);
    }
    // Inputs that are made up, of the sizes of the example and of others.
    const Words subject = {model, "--program", program, "--mesh", "tp=2", "--plan", plan};
    const auto with = [&](Words words, const Words& more) {
      words.insert(words.end(), subject.begin(), subject.end());
      words.insert(words.end(), more.begin(), more.end());
      const Outcome done = RunHere(words);
      INFO(done.ToText());
      CHECK(done.code == 0);
      return done.out;
    };
    CHECK_THAT(with({"verify"}, {}), Contains("verified"));
    CHECK_THAT(with({"verify"}, {"--tokens", "2,14"}), Contains("verified"));
    CHECK_THAT(with({"verify"}, {"--ops"}), Contains("operators:"));
  }
}

TEST_CASE("inputs that a program does not take, or lacks, are named") {
  const ScratchFolder scratch;
  const std::string t5 = kPrograms + "t5";
  const auto eval = [&](const std::string& model, const std::string& input, const Words& more = {}) {
    Words words = {"eval",
                   "--plan",
                   kPrograms + "replicated.lua",
                   model,
                   "--program",
                   model + "/program.pt2",
                   "--input",
                   scratch.Write("in.json", input),
                   "--output",
                   scratch / "out.safetensors"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunHere(words);
    CHECK(done.code != 0);
    CHECK_FALSE(std::filesystem::exists(scratch / "out.safetensors"));
    return done.err;
  };
  const std::string missing = eval(t5, R"({"input_ids": [[3, 4]], "labels": [[3, 4]], "attention_mask": [[1, 1]]})");
  CHECK_THAT(missing, Contains("error[MS0508]: the input file has no 'decoder_input_ids'"));
  CHECK_THAT(missing, Contains("the program does not take 'attention_mask'"));
  const std::string good = R"({"input_ids": [[3, 4]], "decoder_input_ids": [[3, 4]], "labels": [[3, 4]]})";
  CHECK_THAT(eval(t5, R"({"input_ids": [[3, 99]], "decoder_input_ids": [[3, 4]], "labels": [[3, 4]]})"),
             Contains("'input_ids' has ids outside the vocabulary"));
  CHECK_THAT(eval(t5, good, {"--micro-batches", "2"}), Contains("cannot be split into micro-batches"));
  // Padding that the program would count as tokens.
  CHECK_THAT(eval(kPrograms + "llama", R"({"input_ids": [[3, 4]], "attention_mask": [[0, 1]]})"),
             Contains("the program has no input 'attention_mask'") && Contains("--inputs input_ids attention_mask"));
  CHECK_THAT(eval(kPrograms + "llama", R"({"input_ids": [[3, 4]], "position_ids": [[1, 2]]})"),
             Contains("the program has no input 'position_ids'"));
  CHECK_THAT(eval(kPrograms + "llama", R"({"input_ids": [[3, 4]], "labells": [[3, 4]], "types": [[0, 0]]})"),
             Contains("that are no inputs of the model: labells, types") && Contains("--inputs"));
  CHECK_THAT(RunHere({"train", t5, "--plan", kPrograms + "replicated.lua", "--program", t5 + "/program.pt2", "--data",
                      scratch.Write("x.bin", RawTokens<uint16_t>(SomeTokens(400, 48))), "--steps", "1"})
                 .err,
             Contains("the program is not a causal language model") && Contains("decoder_input_ids"));
}

TEST_CASE("a program with its weights in the archive needs no other file") {
  const ScratchFolder scratch;
  const std::string whole = kPrograms + "llama/with_weights.pt2";
  const auto train = [&](const std::string& name, const Words& model) {
    Words words = {"train"};
    words.insert(words.end(), model.begin(), model.end());
    const Words rest = {"--data",     scratch.Write("x.bin", RawTokens<uint16_t>(SomeTokens(2000, 48))),
                        "--steps",    "3",
                        "--batch",    "4",
                        "--sequence", "12",
                        "--mesh",     "tp=2",
                        "--log",      scratch / (name + ".log"),
                        "--save",     scratch / name};
    words.insert(words.end(), rest.begin(), rest.end());
    ExpectGood(RunHere(words));
    CHECK(LogLines(scratch / (name + ".log"), "end").at(0).Find("loss_of")->AsString() == "next tokens");
    return Losses(scratch / (name + ".log"));
  };
  const std::vector<double> losses = train("whole", {whole});
  CHECK(losses.size() == 3);
  CHECK(losses == train("apart", {kPrograms + "llama", "--program", kPrograms + "llama/program.pt2"}));
  ExpectGood(RunHere({"merge", scratch / "whole/step_00000003", scratch / "merged"}));
  CHECK(std::filesystem::exists(scratch / "merged/model.safetensors"));
  const Outcome done = RunHere({"eval", whole, "--mesh", "tp=2", "--input", kPrograms + "llama/inputs.safetensors",
                                "--output", scratch / "out.safetensors", "--grads", "--stats", "-"});
  ExpectGood(done);
  CHECK_THAT(done.out, Contains("\"loss\": \"model\""));  // the plan gathers the logits
  const std::string recorded = kPrograms + "llama/expected.safetensors";
  ExpectNumbers(scratch / "out.safetensors", recorded, RecordedBound(recorded));
}

TEST_CASE("eval and verify run a program in evaluation mode, and train refuses one that has no other") {
  const ScratchFolder scratch;
  const std::string modes = SourcePath("tests/parity/own_modules/modes/");
  for (const char* program : {"program.pt2", "evaluation.pt2"}) {
    const Outcome done = RunHere({"eval", modes + program, "--input", modes + "inputs.safetensors", "--output",
                                  scratch / "out.safetensors", "--stats", "-"});
    ExpectGood(done);
    CHECK_THAT(done.out, Contains("\"loss\": \"model\""));
    ExpectNumbers(scratch / "out.safetensors", modes + "expected.safetensors", 1e-6);
  }
  // The head in shards, everything else on every rank: with dropout the ranks and the model alone would differ.
  const std::string plan = scratch.Write(
      "plan.lua", "return plan { at(\"head\", colwise { output = replicate }), default(replicated()) }\n");
  ExpectGood(RunHere(
      {"verify", modes + "program.pt2", "--mesh", "tp=2", "--plan", plan, "--input", modes + "inputs.safetensors"}));
  // Its loss is one of the same position, and not of the next token.
  const Outcome parts = RunHere({"eval", modes + "program.pt2", "--input", modes + "inputs.safetensors", "--output",
                                 scratch / "parts.safetensors", "--micro-batches", "2"});
  CHECK(parts.code != 0);
  CHECK_THAT(parts.err, Contains("own loss is not the cross-entropy of the next token"));
  const std::string data = scratch.Write("x.bin", RawTokens<uint16_t>(SomeTokens(200, 24)));
  const Words run = {"--data", data, "--steps", "1", "--batch", "2", "--sequence", "6"};
  Words words = {"train", modes + "program.pt2"};
  words.insert(words.end(), run.begin(), run.end());
  const Outcome other_loss = RunHere(words);
  INFO(other_loss.ToText());
  CHECK(other_loss.code != 0);
  CHECK_THAT(other_loss.err,
             Contains("error[MS0506]: the program's own loss is not the cross-entropy of the next token") &&
                 Contains("at: " + modes + "program.pt2") && Contains("or --loss model"));
  words = {"train", kPrograms + "llama", "--program", modes + "evaluation.pt2", "--plan", plan};
  words.insert(words.end(), run.begin(), run.end());
  const Outcome refused = RunHere(words);
  INFO(refused.ToText());
  CHECK(refused.code != 0);
  CHECK_THAT(refused.err, Contains("error[MS0506]: the program was exported in evaluation mode"));
  CHECK_THAT(refused.err, Contains("without --eval"));
  // Persistent buffers too have the initial values of the model.
  words = {"train", kPrograms + "deepseek_v3", "--program", kPrograms + "deepseek_v3/program.pt2", "--init", "1"};
  words.insert(words.end(), run.begin(), run.end());
  const Outcome with_buffer = RunHere(words);
  INFO(with_buffer.ToText());
  CHECK(with_buffer.code == 0);
}

TEST_CASE("a program exported in bfloat16 computes in every dtype, one in float32 in its own") {
  const ScratchFolder scratch;
  const std::string out = scratch / "out.safetensors";
  const auto eval = [&](const std::string& model, const Words& dtype) {
    Words words = {"eval",      model,
                   "--program", model + (model == kDTypes ? "bfloat16.pt2" : "program.pt2"),
                   "--input",   model + "inputs.safetensors",
                   "--output",  out,
                   "--grads"};
    words.insert(words.end(), dtype.begin(), dtype.end());
    return RunHere(words);
  };
  ExpectGood(eval(kDTypes, {}));
  const std::string recorded = kDTypes + "expected_bfloat16.safetensors";
  const auto gradient_dtype = [&] {
    return Checkpoint::OpenFile(out).ValueOrThrow().Find("grad.model.norm.weight")->dtype;
  };
  ExpectNumbers(out, recorded, RecordedBoundOfResults(recorded, kUnitRoundoffBFloat16));
  CHECK(gradient_dtype() == DType::kBF16);
  ExpectGood(eval(kDTypes, {"--dtype", "float32"}));
  ExpectNumbers(out, kDTypes + "expected_float32.safetensors", RecordedBound(recorded));
  CHECK(gradient_dtype() == DType::kF32);
  ExpectGood(eval(kDTypes, {"--dtype", "float64"}));
  // Sums in float64; the model's norms round their results to float32 in every dtype.
  const std::string recorded64 = kDTypes + "expected_float64.safetensors";
  ExpectNumbers(out, recorded64, RecordedBoundOfResults(recorded64, kUnitRoundoff32));
  CHECK(gradient_dtype() == DType::kF64);
  const Outcome refused = eval(kPrograms + "llama/", {"--dtype", "bfloat16"});
  CHECK(refused.code != 0);
  CHECK_THAT(refused.err, Contains("error[MS0506]: the program cannot be computed in bfloat16"));
  CHECK_THAT(refused.err, Contains("export the model again with --dtype bfloat16"));
}

TEST_CASE("a program alone: its archive has the config, and new weights are made") {
  const ScratchFolder scratch;
  const std::string program = kPrograms + "llama/program.pt2";
  const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(2000, 48)));
  const Words words = {"train", program,   "--data", data,         "--mesh", "tp=2",   "--steps",
                       "2",     "--batch", "2",      "--sequence", "8",      "--save", scratch / "run"};
  const Outcome without = RunHere(words);
  CHECK(without.code != 0);
  CHECK_THAT(without.err, Contains("error[MS0406]: the program has no weights") && Contains("--init SEED"));
  Words init = words;
  init.insert(init.end(), {"--init", "1"});
  ExpectGood(RunHere(init));
  ExpectGood(RunHere({"merge", scratch / "run/step_00000002", scratch / "trained"}));
  CHECK(std::filesystem::exists(scratch / "trained/config.json"));
  const std::string input = scratch.Write("in.json", R"({"input_ids": [[3, 4, 5]]})");
  const std::string out = scratch / "out.safetensors";
  ExpectGood(RunHere({"eval", scratch / "trained", "--program", program, "--input", input, "--output", out}));
  const Outcome weightless = RunHere({"eval", program, "--input", input, "--output", out});
  CHECK(weightless.code != 0);
  CHECK_THAT(weightless.err, Contains("the program has no weights") && Contains("--program"));
}

std::string JsonRow(const std::vector<int64_t>& row) {
  std::string text;
  for (const int64_t token : row) text += (text.empty() ? "[" : ", ") + std::to_string(token);
  return text + "]";
}

std::vector<float> FloatsOf(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor* tensor = checkpoint.Find(name);
  REQUIRE(tensor != nullptr);
  REQUIRE(tensor->dtype == DType::kF32);
  std::vector<float> out(tensor->bytes / sizeof(float));
  std::memcpy(out.data(), ReadWholeFile(checkpoint.files()[tensor->file].path).data() + tensor->begin, tensor->bytes);
  return out;
}

// The loss in a file that eval wrote.
double LossIn(const std::string& file) { return FloatsOf(Checkpoint::OpenFile(file).ValueOrThrow(), "loss").at(0); }

// The loss of one row, by eval in float32.
double LossOfRow(const ScratchFolder& scratch, const Words& model, const std::vector<int64_t>& row) {
  const std::string out = scratch / "loss.safetensors";
  Words words = {"eval"};
  words.insert(words.end(), model.begin(), model.end());
  words.insert(words.end(), {"--plan", kPrograms + "replicated.lua", "--dtype", "float32", "--input",
                             scratch.Write("row.json", "{\"input_ids\": [" + JsonRow(row) + "]}"), "--output", out});
  ExpectGood(RunHere(words));
  return LossIn(out);
}

// A run on one row with a learning rate that changes nothing, evaluated on the row after every step.
struct StillRun {
  std::vector<double> losses;
  std::vector<double> evals;
  std::string err;
};

StillRun RunStill(const ScratchFolder& scratch, const Words& model, const std::vector<int64_t>& row,
                  const Words& more = {}) {
  const std::string data = scratch.Write("row.bin", RawTokens<uint16_t>(row));
  const std::string log = scratch / "still.log";
  std::filesystem::remove(log);
  Words words = {"train"};
  words.insert(words.end(), model.begin(), model.end());
  words.insert(words.end(), {"--data", data, "--eval-data", data, "--eval-every", "1", "--steps", "3", "--batch", "1",
                             "--lr", "1e-30", "--sequence", std::to_string(row.size() - 1), "--log", log});
  words.insert(words.end(), more.begin(), more.end());
  const Outcome done = RunHere(words);
  ExpectGood(done);
  StillRun out;
  out.err = done.err;
  out.losses = Losses(log);
  for (const JsonValue& line : LogLines(log, "eval")) out.evals.push_back(line.Find("loss")->AsDouble());
  return out;
}

TEST_CASE("held-out data is evaluated without dropout, and what the program does not keep is a warning") {
  const ScratchFolder scratch;
  const std::vector<int64_t> row = SomeTokens(13, 24);
  const Words model = {SourcePath("tests/parity/own_modules/tables/program.pt2")};
  const StillRun run = RunStill(scratch, model, row);
  const double evaluated = LossOfRow(scratch, model, row);
  ExpectNear(run.evals, {evaluated, evaluated, evaluated}, 1e-6);
  REQUIRE(run.losses.size() == 3);
  for (const double loss : run.losses) CHECK(std::abs(loss - evaluated) > 1e-4);  // dropout, after an evaluation too
  CHECK_THAT(run.err, Contains("warning[MS0506]") && Contains("'calls'"));
}

// Batch norm, and dropout in attention, by operators and in recurrence: own_modules/modes.
TEST_CASE("an evaluation during training draws nothing and leaves the statistics of the model alone") {
  const ScratchFolder scratch;
  const std::string program = SourcePath("tests/parity/own_modules/modes/program.pt2");
  const std::vector<int64_t> rows = SomeTokens(13, 24);  // two rows of six tokens, the size of the program
  const std::string data = scratch.Write("rows.bin", RawTokens<uint16_t>(rows));
  const auto train = [&](const std::string& name, const Words& more) {
    Words words = {
        "train",   program, "--loss",  "model", "--data", data,           "--sequence", "6",
        "--batch", "2",     "--steps", "3",     "--save", scratch / name, "--log",      scratch / (name + ".log")};
    words.insert(words.end(), more.begin(), more.end());
    ExpectGood(RunHere(words));
    ExpectGood(RunHere({"merge", scratch / (name + "/step_00000003"), scratch / (name + ".merged")}));
    return Numbers(scratch / (name + ".log"));
  };
  const std::string without = train("without", {});
  CHECK(train("with", {"--eval-data", data, "--eval-every", "1"}) == without);
  CHECK(ReadWholeFile(scratch / "with.merged/model.safetensors") ==
        ReadWholeFile(scratch / "without.merged/model.safetensors"));
  // The model after the last step, in evaluation mode.
  const std::string batch =
      "[" + JsonRow({rows.begin(), rows.begin() + 6}) + ", " + JsonRow({rows.begin() + 6, rows.begin() + 12}) + "]";
  const std::string input = scratch.Write("rows.json", "{\"input_ids\": " + batch + ", \"labels\": " + batch + "}");
  scratch.Write("with.merged/config.json", "{}");
  ExpectGood(RunHere({"eval", scratch / "with.merged", "--program", program, "--input", input, "--output",
                      scratch / "out.safetensors"}));
  const std::vector<JsonValue> evals = LogLines(scratch / "with.log", "eval");
  REQUIRE(evals.size() == 3);
  CHECK(evals.back().Find("loss")->AsDouble() == Approx(LossIn(scratch / "out.safetensors")).epsilon(1e-6));
}

TEST_CASE("a program exported in bfloat16 moves by small rates, with float32 moments") {
  const ScratchFolder scratch;
  const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 32)));
  ExpectGood(RunHere({"train", kDTypes, "--program", kDTypes + "bfloat16.pt2", "--data", data, "--steps", "3",
                      "--batch", "4", "--sequence", "16", "--lr", "1e-5", "--save", scratch / "run"}));
  ExpectGood(RunHere({"merge", scratch / "run/step_00000003", scratch / "trained"}));
  for (const char* layer : {"0", "1"}) {
    const std::string name = std::string("model.layers.") + layer + ".self_attn.q_proj.weight";
    const std::vector<float> before = FloatsOf(Checkpoint::Open(kDTypes).ValueOrThrow(), name);
    const std::vector<float> after = FloatsOf(Checkpoint::Open(scratch / "trained").ValueOrThrow(), name);
    REQUIRE(after.size() == before.size());
    size_t moved = 0;
    for (size_t i = 0; i < before.size(); ++i) moved += before[i] != after[i] ? 1 : 0;
    INFO(name << ": " << moved << " of " << before.size());
    CHECK(moved == before.size());
  }
  const Checkpoint saved = Checkpoint::OpenFile(scratch / "run/step_00000003/rank-00000.safetensors").ValueOrThrow();
  size_t moments = 0;
  for (const StoredTensor& tensor : saved.tensors()) {
    if (!tensor.name.starts_with("optimizer.exp_avg")) continue;
    INFO(tensor.name);
    CHECK(tensor.dtype == DType::kF32);
    ++moments;
  }
  CHECK(moments > 0);
}

TEST_CASE("a program exported in bfloat16 is trained in float32") {
  const ScratchFolder scratch;
  const std::vector<int64_t> row = SomeTokens(17, 32);
  const Words model = {kDTypes, "--program", kDTypes + "bfloat16.pt2"};
  const StillRun run = RunStill(scratch, model, row, {"--save", scratch / "run"});
  const double evaluated = LossOfRow(scratch, model, row);
  ExpectNear(run.losses, {evaluated, evaluated, evaluated}, 1e-6);
  ExpectGood(RunHere({"merge", scratch / "run/step_00000003", scratch / "trained"}));
  const Checkpoint before = Checkpoint::Open(kDTypes).ValueOrThrow();
  const Checkpoint after = Checkpoint::Open(scratch / "trained").ValueOrThrow();
  REQUIRE(after.tensors().size() == before.tensors().size());
  for (const StoredTensor& tensor : after.tensors()) {
    INFO(tensor.name);
    CHECK(tensor.dtype == DType::kF32);
  }
}

// Tied weights, a buffer, weight decay of matrices alone, and gradients of which some steps clip the norm.
TEST_CASE("ten steps of a program are those of PyTorch's AdamW, on every mesh") {
  const ScratchFolder scratch;
  const std::string outputs = SourcePath("tests/parity/own_modules/outputs/");
  const Checkpoint recorded = Checkpoint::OpenFile(outputs + "curve.safetensors").ValueOrThrow();
  const std::vector<float> losses = FloatsOf(recorded, "losses");
  const std::vector<float> norms = FloatsOf(recorded, "norms");
  const double bound = CurveBound(ChainOf(outputs + "expected.safetensors"),
                                  {.parameters = 600, .steps = 10, .learning_rate = 0.01, .loss = losses.at(0)});
  const std::string plan = scratch.Write("plan.lua", R"(local opt <const> = options { shards = false }
return plan {
  at("up", colwise {}),
  at("down", rowwise {}),
  default(replicated()),
  opt.shards and fsdp { wrap = "{up,down}" } or ddp {},
})");
  const std::string log = scratch / "log";
  for (const Words& mesh : std::vector<Words>{{"--mesh", "tp=1"},
                                              {"--mesh", "tp=2"},
                                              {"--mesh", "tp=1", "--micro-batches", "4"},
                                              {"--mesh", "dp=2,tp=2"},
                                              {"--mesh", "dp=2", "--option", "shards=true"}}) {
    std::filesystem::remove(log);
    Words words = {"train",      outputs + "program.pt2",
                   "--plan",     plan,
                   "--data",     outputs + "curve_tokens.safetensors",
                   "--batch",    "8",
                   "--sequence", "12",
                   "--steps",    "10",
                   "--lr",       "0.01",
                   "--schedule", "constant",
                   "--clip",     "0.12",
                   "--log",      log};
    words.insert(words.end(), mesh.begin(), mesh.end());
    ExpectGood(RunHere(words));
    const std::vector<JsonValue> steps = LogLines(log);
    REQUIRE(steps.size() == losses.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      INFO(mesh[1] << ", step " << i + 1);
      CHECK(std::abs(steps[i].Find("loss")->AsDouble() - losses[i]) <= bound);
      CHECK(steps[i].Find("grad_norm")->AsDouble() == Approx(norms[i]).epsilon(1e-4));
    }
  }
}

// A program with its weights, as an exporter writes it that does not record where the model switches autocast off.
std::string ArchiveWithoutRegions(const ScratchFolder& scratch) {
  const ProgramArchive archive = ProgramArchive::Open(kPrograms + "llama/with_weights.pt2").ValueOrThrow();
  std::vector<ZipEntry> entries;
  for (const std::string& entry : archive.entries()) {
    std::string bytes = archive.Read(entry).ValueOrThrow();
    if (entry == "extra/moonshard.json") {
      JsonValue record = ParseJson(bytes, entry).ValueOrThrow();
      CHECK(record.AsObject().at("options").AsObject().erase("autocast_regions") == 1);
      bytes = WriteJson(record, 0);
    }
    entries.push_back({"program/" + entry, std::move(bytes)});
  }
  return scratch.Write("without_regions.pt2", StoredZip(entries));
}

TEST_CASE("train --dtype bfloat16 runs a program under autocast, and refuses one without its regions") {
  const ScratchFolder scratch;
  const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 32)));
  for (const Words& model : std::vector<Words>{{kPrograms + "llama", "--program", kPrograms + "llama/program.pt2"},
                                               {kDTypes, "--program", kDTypes + "bfloat16.pt2"}}) {
    INFO(model[0]);
    const auto train = [&](const std::string& dtype) {
      const std::string log = scratch / "log";
      std::filesystem::remove(log);
      Words words = {"train"};
      words.insert(words.end(), model.begin(), model.end());
      const Words rest = {"--data", data,   "--batch", "4",    "--sequence", "16", "--steps", "6",
                          "--lr",   "0.01", "--mesh",  "tp=1", "--log",      log,  "--dtype", dtype};
      words.insert(words.end(), rest.begin(), rest.end());
      ExpectGood(RunHere(words));
      return Losses(log);
    };
    const std::vector<double> in_float32 = train("float32");
    const std::vector<double> in_bfloat16 = train("bfloat16");
    REQUIRE(in_bfloat16.size() == in_float32.size());
    CHECK(in_bfloat16.back() < in_bfloat16.front());
    for (size_t i = 0; i < in_float32.size(); ++i) {
      const double difference = std::abs(in_bfloat16[i] - in_float32[i]) / in_float32[i];
      CHECK(difference < 0.01);
      CHECK(difference > 1e-6);  // float32 does not round as bfloat16 does
    }
  }
  const std::string program = ArchiveWithoutRegions(scratch);
  const auto without = [&](const std::string& dtype) {
    return RunHere({"train", program, "--data", data, "--steps", "1", "--batch", "1", "--sequence", "8", "--dtype",
                    dtype, "--save", scratch / dtype});
  };
  ExpectGood(without("float32"));
  CHECK(std::filesystem::exists(scratch / "float32"));
  const Outcome refused = without("bfloat16");
  INFO(refused.ToText());
  CHECK(refused.code != 0);
  CHECK_THAT(refused.err,
             Contains("error[MS0506]: the program does not record where the model switches autocast off") &&
                 Contains("at: " + program));
  CHECK_FALSE(std::filesystem::exists(scratch / "bfloat16"));  // before the run begins
}

// Gemma 3, whose norms multiply by 1 + weight.
TEST_CASE("train --init gives norms of 1 + weight zeros, as the model does") {
  const ScratchFolder scratch;
  const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 32)));
  for (const char* mesh : {"tp=1", "tp=2"}) {
    const std::string run = scratch / mesh;
    ExpectGood(RunHere({"train",   kDTypes, "--program",  kDTypes + "bfloat16.pt2",
                        "--init",  "1",     "--data",     data,
                        "--mesh",  mesh,    "--steps",    "1",
                        "--batch", "2",     "--sequence", "16",
                        "--lr",    "0",     "--save",     run}));
    ExpectGood(RunHere({"merge", run + "/step_00000001", run + ".merged"}));
    const Checkpoint made = Checkpoint::Open(run + ".merged").ValueOrThrow();
    size_t norms = 0;
    for (const StoredTensor& tensor : made.tensors()) {
      INFO(mesh << " " << tensor.name);
      const std::vector<float> values = FloatsOf(made, tensor.name);
      const bool zeros = std::ranges::all_of(values, [](float one) { return one == 0; });
      CHECK(zeros == tensor.name.ends_with("norm.weight"));
      norms += zeros ? 1 : 0;
    }
    CHECK(norms == 13);
  }
}

TEST_CASE("a program of stacked experts is trained, and merges under the names of the checkpoint") {
  for (const char* name : {"mixtral", "qwen3_5_moe", "llama"}) {
    INFO(name);
    const ScratchFolder scratch;
    const std::string model = kPrograms + name;
    const std::string program = model + "/program.pt2";
    const std::string plan = SuggestedPlan(scratch, program);
    const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(2000, 48)));
    std::vector<int64_t> row = SomeTokens(17, 48);
    const std::string held_out = scratch.Write("row.bin", RawTokens<uint16_t>(row));
    const Words words = {"train",        model,        "--program",   program,  "--mesh",
                         "tp=2",         "--plan",     plan,          "--data", data,
                         "--steps",      "4",          "--batch",     "4",      "--lr",
                         "1e-2",         "--sequence", "16",          "--save", scratch / "run",
                         "--save-every", "2",          "--eval-data", held_out, "--log",
                         scratch / "log"};
    ExpectGood(RunHere(words));
    const std::vector<JsonValue> evals = LogLines(scratch / "log", "eval");
    REQUIRE(evals.size() == 1);
    const double trained = evals[0].Find("loss")->AsDouble();
    ExpectGood(RunHere({"merge", scratch / "run/step_00000004", scratch / "trained"}));
    const Checkpoint before = Checkpoint::Open(model).ValueOrThrow();
    const Checkpoint after = Checkpoint::Open(scratch / "trained").ValueOrThrow();
    REQUIRE(after.tensors().size() == before.tensors().size());
    for (const StoredTensor& tensor : before.tensors()) {
      INFO(tensor.name);
      REQUIRE(after.Find(tensor.name) != nullptr);
      CHECK(after.Find(tensor.name)->shape == tensor.shape);
      CHECK(after.Find(tensor.name)->dtype == tensor.dtype);
    }
    CHECK(ReadWholeFile(scratch / "trained/config.json") == ReadWholeFile(model + "/config.json"));
    const double merged = LossOfRow(scratch, {scratch / "trained", "--program", program}, row);
    CHECK(std::abs(merged - trained) <= RecordedBound(model + "/expected.safetensors") * trained);
    CHECK(std::abs(LossOfRow(scratch, {model, "--program", program}, row) - trained) > 1e-3);  // it has learned
    // After step 2 a resumed run takes the steps of the run: to the bit, and on another mesh up to rounding.
    const std::vector<double> losses = Losses(scratch / "log");
    REQUIRE(losses.size() == 4);
    for (const char* mesh : {"tp=2", "tp=1"}) {
      INFO(mesh);
      const std::string part = scratch / mesh;
      std::filesystem::create_directories(part);
      std::filesystem::copy(scratch / "run/step_00000002", part + "/step_00000002",
                            std::filesystem::copy_options::recursive);
      Words more = words;
      *(std::ranges::find(more, "--mesh") + 1) = mesh;
      *(std::ranges::find(more, "--save") + 1) = part;
      *(std::ranges::find(more, "--log") + 1) = part + ".log";
      more.emplace_back("--resume");
      const Outcome resumed = RunHere(more);
      ExpectGood(resumed);
      CHECK_THAT(resumed.err, Contains("resumed after step 2"));
      if (std::string(mesh) == "tp=2") {
        CHECK(Losses(part + ".log").size() == 2);
        CHECK_THAT(Numbers(scratch / "log"), Catch::EndsWith(Numbers(part + ".log")));
      } else {
        const double bound = CurveBound(ChainOf(model + "/expected.safetensors"),
                                        {.parameters = 5e4, .steps = 4, .learning_rate = 1e-2, .loss = losses[0]});
        ExpectNear(Losses(part + ".log"), {losses[2], losses[3]}, bound);
      }
    }
  }
}

}  // namespace
}  // namespace moonshard::test
