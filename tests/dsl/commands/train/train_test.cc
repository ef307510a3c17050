// `moonshard train` as a user starts it: the same curve however the ranks share the work, what the log holds, and what
// is said of a run that cannot be.
#include <catch2/catch.hpp>

#include <cstring>
#include <filesystem>

#include "engine/io/safetensors/header.h"
#include "tests/dsl/commands/train/runs.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

TEST_CASE("one curve, whatever shares the work") {
  const ScratchFolder folder;
  const auto curve = [&](const std::string& name, const Words& more) {
    Words words = {"--steps", "10", "--log", folder / name};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunTraining(TrainWords(folder, words));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return Losses(folder / name);
  };
  const std::string ddp = folder.Write("ddp.lua", "return plan { extends \"llama\", ddp {} }");
  // The logits of all tokens on every rank, as of a plan whose ranks pass whole rows.
  const std::string gathered = folder.Write("gathered.lua", R"(
local own <const> = on { tp = replicate, cp = mesh.cp > 1 and shard(1, { zigzag = true }) or nil }
return plan { extends "llama", at("lm_head", style { name = "head", params = { weight = shared },
  inputs = { { own, own } }, outputs = { { own, replicate } } }) })");
  const std::vector<double> alone = curve("alone", {});
  REQUIRE(alone.size() == 10);
  CHECK(alone.back() < alone.front() - 0.5);  // it learns
  struct Row {
    std::string name;
    Words words;
  };
  const std::vector<Row> rows = {
      {"dp", {"--mesh", "dp=2"}},
      {"tp", {"--mesh", "tp=2"}},
      {"both", {"--mesh", "dp=2,tp=2", "--check-replicas", "3"}},
      {"hybrid", {"--mesh", "dp_replicate=2,dp=2", "--micro-batches", "2", "--check-replicas", "1"}},
      {"micro", {"--micro-batches", "4"}},
      {"pieces", {"--mesh", "tp=2", "--option", "loss_parallel=true", "--option", "sequence_parallel=true"}},
      {"context", {"--mesh", "cp=2", "--option", "context=ulysses"}},
      {"context_loss", {"--mesh", "cp=4", "--option", "context=ulysses", "--option", "loss_parallel=true"}},
      {"context_tp", {"--mesh", "cp=2,tp=2", "--option", "context=ulysses", "--option", "loss_parallel=true"}},
      {"context_chunks", {"--mesh", "cp=2,tp=2", "--option", "context=ulysses", "--loss-chunk", "8"}},
      {"context_chunks_sp",
       {"--mesh", "cp=2,tp=2", "--option", "context=ulysses", "--option", "sequence_parallel=true", "--loss-chunk", "8",
        "--micro-batches", "2"}},
      {"ring_loss", {"--mesh", "cp=4", "--option", "context=ring", "--option", "loss_parallel=true"}},
      {"ring_chunks_sp",
       {"--mesh", "cp=2,tp=2", "--option", "context=ring", "--option", "sequence_parallel=true", "--loss-chunk", "8"}},
      {"own_inputs",
       {"--mesh", "cp=2,tp=2", "--option", "context=ring", "--option", "inputs=own", "--check-replicas", "4"}},
      {"own_inputs_gathered",
       {"--mesh", "cp=2", "--option", "context=ring", "--option", "inputs=own", "--plan", gathered}},
      {"own_inputs_chunks",
       {"--mesh", "cp=2", "--option", "context=ulysses", "--option", "inputs=own", "--loss-chunk", "8"}},
      {"two_factors", {"--mesh", "cp=2x2", "--option", "context=ulysses_ring", "--option", "loss_parallel=true"}},
      {"two_factors_chunks_sp",
       {"--mesh", "cp=2x2,tp=2", "--option", "context=ulysses_ring", "--option", "sequence_parallel=true",
        "--loss-chunk", "8"}},
      {"chunks", {"--mesh", "tp=2", "--loss-chunk", "24", "--option", "sequence_parallel=true"}},
      {"chunks_fsdp", {"--mesh", "dp=2,tp=2", "--loss-chunk", "24", "--micro-batches", "2"}},
      {"chunks_ddp",
       {"--mesh", "dp=2,tp=2", "--loss-chunk", "24", "--micro-batches", "2", "--plan", ddp, "--check-replicas", "2"}},
      {"chunks_alone", {"--loss-chunk", "50"}},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    ExpectNear(curve(row.name, row.words), alone, BoundOfCurve(alone));
  }
  // The types that are not float32: close where they are shorter, and really another computation.
  const std::vector<double> wide = curve("wide", {"--mesh", "tp=2", "--dtype", "float64"});
  ExpectNear(wide, alone, BoundOfCurve(alone));
  const std::vector<double> narrow = curve("narrow", {"--mesh", "dp=2,tp=2", "--dtype", "bfloat16"});
  ExpectNear(narrow, alone, 0.12);
  CHECK(narrow != alone);
}

// Documents of 1 to 11 tokens: parts of a batch have other numbers of targets.
TEST_CASE("one curve of rows of several documents, whatever shares the work") {
  const ScratchFolder folder;
  std::vector<int64_t> documents;
  for (int64_t i = 0; documents.size() < 4000; ++i) documents.insert(documents.end(), 1 + i % 11, i);
  documents.resize(4000);
  const std::string data = folder.Write(
      "documents.safetensors", TensorFile({{"tokens", "U16", "[4000]", RawTokens<uint16_t>(SomeTokens(4000, 64))},
                                           {"document_ids", "I32", "[4000]", RawTokens<int32_t>(documents)}}));
  const auto curve = [&](const std::string& name, const Words& more) {
    Words words = {"--steps", "4", "--log", folder / name};
    words.insert(words.end(), more.begin(), more.end());
    Words all = TrainWords(folder, words);
    all[3] = data;
    const Outcome done = RunTraining(all);
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return Losses(folder / name);
  };
  const std::vector<double> alone = curve("alone", {});
  const std::vector<std::pair<std::string, Words>> rows = {
      {"dp_tp", {"--mesh", "dp=2,tp=2", "--micro-batches", "2"}},
      {"ring", {"--mesh", "cp=4", "--option", "context=ring", "--option", "loss_parallel=true"}},
      {"ulysses", {"--mesh", "cp=2,dp=2", "--option", "context=ulysses", "--loss-chunk", "8"}},
      {"own_inputs", {"--mesh", "cp=2", "--option", "context=ring", "--option", "inputs=own"}},
      {"two_factors", {"--mesh", "cp=2x2", "--option", "context=ulysses_ring", "--loss-chunk", "8"}},
  };
  for (const auto& [name, words] : rows) {
    INFO(name);
    ExpectNear(curve(name, words), alone, BoundOfCurve(alone));
  }
}

// A float32 scalar of a safetensors file.
double ScalarIn(const std::string& file, const std::string& name) {
  const Header header = ReadHeader(file).ValueOrThrow();
  const auto found = std::ranges::find(header.tensors, name, &HeaderTensor::name);
  REQUIRE(found != header.tensors.end());
  REQUIRE(found->dtype == DType::kF32);
  float value = 0;
  std::memcpy(&value, ReadWholeFile(file).data() + header.data_begin + found->begin, sizeof(value));
  return value;
}

// The only row of the file: what eval takes as inputs with labels, which it shifts itself.
TEST_CASE("the loss of a row of documents is that of eval with document_ids") {
  const ScratchFolder folder;
  const std::vector<int64_t> tokens = SomeTokens(17, 64);
  const std::vector<int64_t> documents = {0, 0, 0, 5, 5, 5, 5, 5, 5, 2, 3, 3, 3, 3, 3, 3, 3};
  const std::string data = folder.Write("documents.safetensors",
                                        TensorFile({{"tokens", "U16", "[17]", RawTokens<uint16_t>(tokens)},
                                                    {"document_ids", "I32", "[17]", RawTokens<int32_t>(documents)}}));
  const std::string input = folder.Write(
      "input.safetensors", TensorFile({{"input_ids", "I64", "[1, 17]", RawTokens<int64_t>(tokens)},
                                       {"document_ids", "I32", "[1, 17]", RawTokens<int32_t>(documents)}}));
  const Outcome trained = RunTraining({"train", kModel, "--data", data, "--steps", "1", "--sequence", "16", "--batch",
                                       "1", "--lr", "1e-3", "--log", folder / "log"});
  INFO(trained.ToText());
  REQUIRE(trained.code == 0);
  const Outcome evaluated = RunExecutable(
      ExecutablePath(), {"eval", kModel, "--input", input, "--output", folder / "out.safetensors", "--stats", "-"});
  INFO(evaluated.ToText());
  REQUIRE(evaluated.code == 0);
  const double loss = ScalarIn(folder / "out.safetensors", "loss");
  CHECK(Losses(folder / "log").front() == Approx(loss).epsilon(1e-6));
}

TEST_CASE("rows of documents beyond the short frequencies of longrope are a warning") {
  const ScratchFolder folder;
  const std::string ids = folder.Write(
      "documents.safetensors", TensorFile({{"tokens", "U16", "[400]", RawTokens<uint16_t>(SomeTokens(400, 64))},
                                           {"document_ids", "U8", "[400]", RawTokens<uint8_t>(SomeTokens(400, 3))}}));
  const std::string none = folder.Write(
      "tokens.safetensors", TensorFile({{"tokens", "U16", "[400]", RawTokens<uint16_t>(SomeTokens(400, 64))}}));
  const auto warned = [&](const std::string& model, const std::string& data, const std::string& sequence) {
    const Outcome done = RunTraining({"train", SourcePath("tests/parity/" + model), "--data", data, "--steps", "1",
                                      "--sequence", sequence, "--batch", "2"});
    INFO(done.ToText());
    CHECK(done.code == 0);
    return done.err.find("warning[MS0506]: longrope") != std::string::npos;
  };
  CHECK(warned("phi3_longrope", ids, "15"));
  CHECK_FALSE(warned("phi3_longrope", ids, "14"));
  CHECK_FALSE(warned("phi3_longrope", none, "15"));
  CHECK_FALSE(warned("llama_gqa", ids, "15"));
}

TEST_CASE("a program refuses a file with documents, which it was not exported with") {
  const ScratchFolder folder;
  const std::string data = folder.Write(
      "documents.safetensors", TensorFile({{"tokens", "U16", "[40]", RawTokens<uint16_t>(SomeTokens(40, 40))},
                                           {"document_ids", "U8", "[40]", RawTokens<uint8_t>(SomeTokens(40, 3))}}));
  const std::string program = SourcePath("tests/parity/programs/llama/program.pt2");
  const Outcome refused = RunTraining(
      {"train", program, "--init", "1", "--data", data, "--steps", "1", "--sequence", "16", "--batch", "2"});
  INFO(refused.ToText());
  CHECK(refused.code == 1);
  CHECK_THAT(refused.err, Contains("the program cannot take the 'document_ids' of the file") && Contains(data));
}

TEST_CASE("new weights are the same for every mesh, and another seed's are others") {
  const ScratchFolder folder;
  const std::string config = folder / "config_only";
  std::filesystem::create_directory(config);
  std::filesystem::copy(kModel + "/config.json", config);
  const auto curve = [&](const std::string& name, const Words& more) {
    Words words = {"--steps", "4", "--log", folder / name};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunTraining(TrainWords(folder, words, config));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return Losses(folder / name);
  };
  const std::vector<double> alone = curve("alone", {"--init", "7"});
  ExpectNear(curve("both", {"--init", "7", "--mesh", "dp=2,tp=2"}), alone, BoundOfCurve(alone));
  CHECK(curve("other", {"--init", "8"}).front() != alone.front());
  CHECK(alone.front() == Approx(std::log(64)).epsilon(0.02));  // it knows nothing yet
}

// In float64, where no rounding gives a token to another expert.
TEST_CASE("a run with experts on ep has the curve of one rank, and logs their loads") {
  const ScratchFolder folder;
  const std::string model = SourcePath("tests/parity/mixtral");
  const auto steps_of = [&](const std::string& name, const Words& more) {
    Words words = {"--steps", "6", "--dtype", "float64", "--log", folder / name};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunTraining(TrainWords(folder, words, model));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return LogLines(folder / name);
  };
  for (const JsonValue& step : steps_of("alone", {"--option", "exchange=true"})) {
    CHECK(step.Find("expert_load") == nullptr);
    CHECK(step.Find("dropped_tokens") == nullptr);
  }
  const std::vector<double> alone = Losses(folder / "alone");
  std::vector<double> loads;
  for (const auto& [name, words] : std::vector<std::pair<std::string, Words>>{
           {"ep", {"--mesh", "ep=2"}},
           {"tp", {"--mesh", "ep=2,tp=2"}},
           {"dp", {"--mesh", "dp=2,ep=2", "--micro-batches", "2", "--check-replicas", "2"}},
           {"four", {"--mesh", "ep=4", "--micro-batches", "2"}},
       }) {
    INFO(name);
    Words all = words;
    all.insert(all.end(), {"--option", "exchange=true"});
    const std::vector<JsonValue> steps = steps_of(name, all);
    ExpectNear(Losses(folder / name), alone, 1e-9);
    for (const JsonValue& step : steps) {
      // The largest load is at least the mean, and at most all tokens for one of four experts.
      CHECK(step.Find("expert_load")->AsDouble() >= 1);
      CHECK(step.Find("expert_load")->AsDouble() <= 4);
      CHECK(step.Find("dropped_tokens")->AsInt() == 0);
    }
    // Whoever has an expert, it receives the tokens of all ranks of ep.
    if (name == "ep") loads.push_back(steps[0].Find("expert_load")->AsDouble());
    if (name == "tp" || name == "four") loads.push_back(steps[0].Find("expert_load")->AsDouble());
  }
  CHECK(loads == std::vector<double>(3, loads.front()));
  const std::string plan = SourcePath("tests/dsl/commands/run/planted/exchange_drops.lua");
  for (const JsonValue& step : steps_of("drops", {"--mesh", "ep=2", "--option", "exchange=true", "--plan", plan})) {
    CHECK(step.Find("dropped_tokens")->AsInt() > 0);
  }
}

// A copy of a recorded model whose config has these fields besides.
std::string WithConfig(const ScratchFolder& folder, const std::string& model, const JsonValue::Object& fields) {
  std::string copy = folder / "changed";
  std::filesystem::create_directory(copy);
  std::filesystem::copy(model + "/model.safetensors", copy);
  JsonValue config = ReadJsonFile(model + "/config.json").ValueOrThrow();
  for (const auto& [name, value] : fields) config.AsObject()[name] = value;
  folder.Write("changed/config.json", WriteJson(config, 2));
  return copy;
}

// In float64, where no rounding gives a token to another expert.
TEST_CASE("a run with losses of routers has the curve of one rank, by options and by the config") {
  const ScratchFolder folder;
  const std::string model = SourcePath("tests/parity/mixtral");
  struct Curves {
    std::vector<double> labels, routers;
  };
  const auto curves = [&](const std::string& name, Words more, const std::string& of) {
    more.insert(more.end(), {"--steps", "6", "--dtype", "float64", "--log", folder / name, "--json"});
    const Outcome done = RunTraining(TrainWords(folder, more, of));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    Curves out;
    for (const JsonValue& step : LogLines(folder / name)) {
      out.labels.push_back(step.Find("loss")->AsDouble());
      if (step.Find("router_loss") != nullptr) out.routers.push_back(step.Find("router_loss")->AsDouble());
    }
    const JsonValue* last = ParseJson(done.out, name).ValueOrThrow().Find("router_loss");
    CHECK(last->is_null() == out.routers.empty());
    return out;
  };
  const Words both = {"--router-balance", "0.5", "--router-z", "0.25"};
  const Curves without = curves("without", {}, model);
  const Curves alone = curves("alone", both, model);
  CHECK(without.routers.empty());
  CHECK(without.labels[0] == alone.labels[0]);
  CHECK(std::abs(without.labels[5] - alone.labels[5]) > 1e-5);
  CHECK(alone.routers[5] < alone.routers[0] - 1e-2);
  const std::string kept = folder.Write("kept.lua",
                                        "return plan { extends \"mixtral\", recompute { \"model.layers.*\", "
                                        "keep_modules = \"model.layers.*.block_sparse_moe\" } }");
  const std::vector<std::pair<std::string, Words>> rows = {
      {"tp", {"--mesh", "tp=2"}},
      {"sequence", {"--mesh", "tp=4", "--option", "sequence_parallel=true"}},
      {"owned", {"--mesh", "tp=2", "--option", "expert_parallel=true"}},
      {"dp", {"--mesh", "dp=2"}},
      {"ep", {"--mesh", "ep=2", "--option", "exchange=true"}},
      {"ep_cp", {"--mesh", "ep=2,cp=2", "--option", "exchange=true", "--option", "context=ulysses"}},
      {"cp", {"--mesh", "cp=4", "--option", "context=ulysses", "--option", "loss_parallel=true"}},
      {"chunks", {"--mesh", "dp=2,tp=2", "--loss-chunk", "24"}},
      {"kept", {"--mesh", "tp=2", "--plan", kept}},
  };
  for (const auto& [name, words] : rows) {
    INFO(name);
    Words all = words;
    all.insert(all.end(), both.begin(), both.end());
    const Curves got = curves(name, all, model);
    ExpectNear(got.labels, alone.labels, 1e-9);
    ExpectNear(got.routers, alone.routers, 1e-9);
  }
  const std::string with_config = WithConfig(
      folder, model, {{"output_router_logits", true}, {"router_aux_loss_coef", 0.5}, {"router_z_loss_coef", 0.25}});
  CHECK(curves("config", {}, with_config).routers == alone.routers);
  CHECK(curves("off", {"--router-balance", "0", "--router-z", "0"}, with_config).labels == without.labels);
  const Outcome dense = RunTraining(TrainWords(folder, {"--steps", "1", "--router-z", "0.1"}));
  INFO(dense.ToText());
  CHECK(dense.code == 1);
  CHECK_THAT(dense.err, Contains("the model has no router with a loss") && Contains("at: --router-z"));
}

// The losses of a micro-batch are those of its own rows: equal to those of the batch if all rows are equal.
TEST_CASE("micro-batches have the mean of their losses of routers") {
  const ScratchFolder folder;
  const std::string equal = folder.Write("equal.bin", RawTokens<uint16_t>(std::vector<int64_t>(2000, 5)));
  const auto steps_of = [&](const std::string& name, const std::string& data, const std::string& micro_batches) {
    const Outcome done = RunTraining({"train",
                                      SourcePath("tests/parity/mixtral"),
                                      "--data",
                                      data,
                                      "--steps",
                                      "4",
                                      "--batch",
                                      "8",
                                      "--sequence",
                                      "16",
                                      "--lr",
                                      "3e-3",
                                      "--dtype",
                                      "float64",
                                      "--router-balance",
                                      "0.5",
                                      "--router-z",
                                      "0.25",
                                      "--micro-batches",
                                      micro_batches,
                                      "--log",
                                      folder / name});
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return LogLines(folder / name);
  };
  const std::vector<JsonValue> one = steps_of("one", equal, "1");
  const std::vector<JsonValue> four = steps_of("four", equal, "4");
  for (size_t i = 0; i < one.size(); ++i) {
    for (const char* field : {"loss", "router_loss", "grad_norm"}) {
      INFO(field << " of step " << i + 1);
      CHECK(std::abs(four[i].Find(field)->AsDouble() - one[i].Find(field)->AsDouble()) <= 1e-9);
    }
  }
  const std::string other = folder.Write("other.bin", RawTokens<uint16_t>(SomeTokens(4000, 64)));
  const double of_batch = steps_of("batch", other, "1")[0].Find("router_loss")->AsDouble();
  const double of_parts = steps_of("parts", other, "4")[0].Find("router_loss")->AsDouble();
  CHECK(std::abs(of_parts - of_batch) > 1e-4);  // another number by definition
  CHECK(std::abs(of_parts - of_batch) < 0.2);
}

TEST_CASE("every line of the log has its fields, and the summary is on stdout") {
  const ScratchFolder folder;
  const std::string held_out = folder.Write("held_out.bin", RawTokens<uint16_t>(SomeTokens(170, 64)));
  const Outcome done = RunTraining(TrainWords(
      folder, {"--steps", "6", "--mesh", "dp=2,tp=2", "--log", folder / "log", "--json", "--eval-data", held_out,
               "--eval-every", "4", "--log-every", "2", "--warmup", "2", "--min-lr", "1e-3", "--schedule", "linear"}));
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const std::vector<JsonValue> steps = LogLines(folder / "log");
  REQUIRE(steps.size() == 6);
  for (size_t i = 0; i < steps.size(); ++i) {
    INFO(WriteJson(steps[i], 2));
    CHECK(steps[i].Find("step")->AsInt() == static_cast<int64_t>(i) + 1);
    for (const char* name : {"loss", "grad_norm", "learning_rate", "seconds", "tokens_per_second"}) {
      CHECK(steps[i].Find(name)->AsDouble() > 0);
    }
    CHECK(steps[i].Find("tokens")->AsInt() == 8 * 16);
    CHECK_FALSE(steps[i].Find("skipped")->AsBool());
    REQUIRE(steps[i].Find("memory_bytes")->AsArray().size() == 4);
    for (const JsonValue& bytes : steps[i].Find("memory_bytes")->AsArray()) CHECK(bytes.AsInt() > 1 << 20);
    CHECK(steps[i].Find("collectives")->AsInt() > 10);
    CHECK(steps[i].Find("collective_bytes")->AsInt() > 1000);
  }
  CHECK(steps[0].Find("learning_rate")->AsDouble() == Approx(1e-3));
  CHECK(steps[2].Find("learning_rate")->AsDouble() == Approx(3e-3));
  CHECK(steps[4].Find("learning_rate")->AsDouble() == Approx(2e-3));
  const std::vector<JsonValue> evals = LogLines(folder / "log", "eval");
  REQUIRE(evals.size() == 2);
  CHECK(evals[0].Find("step")->AsInt() == 4);
  CHECK(evals[1].Find("step")->AsInt() == 6);
  const JsonValue summary = ParseJson(done.out, "stdout").ValueOrThrow();
  CHECK(summary.Find("format_version")->AsString() == "1.0");
  CHECK(summary.Find("step")->AsInt() == 6);
  CHECK(summary.Find("tokens")->AsInt() == 6 * 8 * 16);
  CHECK(summary.Find("eval_loss")->AsDouble() == evals[1].Find("loss")->AsDouble());
  CHECK(summary.Find("mesh")->AsString() == "dp_shard=2,tp=2");
  CHECK(summary.Find("stopped")->is_null());
  CHECK(LogLines(folder / "log", "end").size() == 1);
  // The first step, every second one, and the held-out losses.
  CHECK_THAT(done.err, Contains("step 1/6") && Contains("step 2/6") && !Contains("step 3/6") && Contains("step 6/6"));
  CHECK_THAT(done.err, Contains("step 4: held-out loss"));

  // The held-out loss is that of all its rows, whatever the number of ranks.
  const Outcome alone = RunTraining(TrainWords(
      folder, {"--steps", "1", "--batch", "2", "--lr", "0", "--log", folder / "one", "--eval-data", held_out}));
  const Outcome shared = RunTraining(TrainWords(folder, {"--steps", "1", "--batch", "6", "--lr", "0", "--mesh", "dp=2",
                                                         "--log", folder / "two", "--eval-data", held_out}));
  INFO(alone.ToText());
  INFO(shared.ToText());
  REQUIRE(alone.code == 0);
  REQUIRE(shared.code == 0);
  CHECK(LogLines(folder / "one", "eval")[0].Find("loss")->AsDouble() ==
        Approx(LogLines(folder / "two", "eval")[0].Find("loss")->AsDouble()).epsilon(1e-6));
}

TEST_CASE("a log that cannot be written is reported once, the run goes on, and its exit code is 1") {
  const ScratchFolder folder;
  const Outcome done = RunTraining(TrainWords(folder, {"--steps", "3", "--log", "/dev/full", "--json"}));
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("MS0409") && Contains("cannot write the log") && Contains("step 3/3"));
  CHECK(done.err.find("MS0409") == done.err.rfind("MS0409"));
  CHECK_THAT(done.out, Contains("\"steps_taken\": 3"));
}

TEST_CASE("text is a token per byte, for a vocabulary that has as many") {
  const ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the quick brown fox jumps over the lazy dog " + std::to_string(i) + "\n";
  const std::string path = folder.Write("text.txt", text);
  const std::string model = SourcePath("tests/parity/llama_vocab331");
  const Outcome done = RunTraining({"train", model, "--data", path, "--steps", "12", "--mesh", "tp=2", "--sequence",
                                    "32", "--lr", "1e-2", "--log", folder / "log"});
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const std::vector<double> losses = Losses(folder / "log");
  CHECK(losses.back() < losses.front() - 1);
}

TEST_CASE("a loss that is no number: the step is left out and named, and too many in a row end the run") {
  const ScratchFolder folder;
  const std::string ahead = GENERATE("0", "1");
  const Outcome done = RunTraining(TrainWords(folder, {"--steps", "9", "--mesh", "tp=2", "--lr", "1e30", "--clip", "0",
                                                       "--skips", "2", "--log", folder / "log", "--ahead", ahead}));
  INFO("--ahead " << ahead << "\n" << done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("warning[MS0511]") && Contains("step 2 has loss ") && Contains("is not finite") &&
                           Contains("model.") && Contains("consecutive steps were skipped"));
  // Had a step been taken, they would be.
  CHECK_THAT(done.err,
             Contains("the gradient of this parameter is not finite") && !Contains("this parameter has a value"));
  const std::vector<JsonValue> steps = LogLines(folder / "log");
  REQUIRE(steps.size() >= 3);
  CHECK_FALSE(steps[0].Find("skipped")->AsBool());
  CHECK(steps.back().Find("skipped")->AsBool());
}

TEST_CASE("a run whose host is a step ahead reports and trains what one that waits does") {
  const ScratchFolder folder;
  struct Row {
    std::string name;
    Words more;
    std::string save_every = "3";
  };
  const std::vector<Row> rows = {
      {"one rank", {"--micro-batches", "2", "--eval-data", folder / "held.bin", "--eval-every", "3"}},
      {"tp", {"--mesh", "tp=2", "--option", "sequence_parallel=true"}},
      {"fsdp", {"--mesh", "dp=2"}},
      {"no clipping", {"--mesh", "tp=2", "--clip", "0"}},
      {"no saves", {"--mesh", "dp=2"}, "7"},
  };
  folder.Write("held.bin", RawTokens<uint16_t>(SomeTokens(200, 60)));
  for (const Row& row : rows) {
    std::vector<std::vector<JsonValue>> steps;
    for (const std::string ahead : {"0", "1"}) {
      const std::string log = folder / (row.name + ahead);
      Words words = {"--steps", "7",          "--dtype",      "float64",      "--log",   log,
                     "--save",  log + ".run", "--save-every", row.save_every, "--ahead", ahead};
      words.insert(words.end(), row.more.begin(), row.more.end());
      const Outcome done = RunTraining(TrainWords(folder, words));
      INFO(row.name << "\n" << done.ToText());
      REQUIRE(done.code == 0);
      steps.push_back(LogLines(log));
      REQUIRE(steps.back().size() == 7);
    }
    for (size_t i = 0; i < 7; ++i) {
      INFO(row.name << ", step " << i + 1);
      for (const char* field : {"loss", "grad_norm"}) {
        CHECK(steps[1][i].Find(field)->AsDouble() == Approx(steps[0][i].Find(field)->AsDouble()).epsilon(1e-9));
      }
      for (const char* field : {"step", "tokens", "collectives", "collective_bytes", "learning_rate"}) {
        CHECK(WriteJson(*steps[1][i].Find(field), 0) == WriteJson(*steps[0][i].Find(field), 0));
      }
    }
  }
}

TEST_CASE("what cannot be trained is said once, and nothing begins") {
  struct Row {
    std::string name;
    Words more;
    int code;
    Words said;
  };
  const ScratchFolder folder;
  const std::string text = folder.Write("text.txt", "some text that is long enough for a row");
  const std::string large = folder.Write("large.bin", RawTokens<uint16_t>(SomeTokens(400, 70)));
  const std::string plan = folder.Write("plan.lua", "return plan { extends \"llama\", ddp {} }");
  const std::string head_unit = folder.Write(
      "head.lua", "return plan { extends \"llama\", fsdp { wrap = { \"model.layers.*\", \"lm_head\" } } }");
  const std::string no_section = folder.Write("alone.lua", "return plan { api = 1, default(replicated()) }");
  const std::vector<Row> rows = {
      {"no data", {"--data", "/nowhere/a.bin"}, 2, {"MS0401", "/nowhere/a.bin"}},
      {"text", {"--data", text}, 1, {"MS0508", "the model's vocabulary is 64", "text.txt"}},
      {"large", {"--data", large}, 1, {"MS0508", "token ", " of the file is ", "ids from 0 to 63", "large.bin"}},
      {"long rows", {"--sequence", "5000"}, 1, {"MS0508", "too few for one row", "5001 tokens"}},
      {"held out", {"--eval-data", "/nowhere/b.bin"}, 2, {"MS0401", "/nowhere/b.bin"}},
      {"batch", {"--batch", "6", "--micro-batches", "2", "--mesh", "dp=2"}, 1, {"MS0508", "a multiple of 4"}},
      {"mesh", {"--mesh", "tp=3"}, 2, {"MS0"}},
      {"no section", {"--mesh", "dp=2", "--plan", no_section}, 2, {"MS0307", "dp_shard", "fsdp { wrap"}},
      {"pipeline", {"--mesh", "pp=2"}, 2, {"MS0506", "pipeline parallelism is not supported"}},
      {"chunks",
       {"--mesh", "dp=2", "--loss-chunk", "8", "--plan", head_unit},
       1,
       {"MS0506", "--loss-chunk", "fsdp unit 'lm_head' gathers this weight only", "root unit of fsdp"}},
      {"log", {"--log", "/nowhere/log"}, 1, {"MS0409", "/nowhere/log"}},
      {"resume", {"--resume"}, 2, {"--resume", "--save"}},
      {"model", {"--plan", "/nowhere/plan.lua"}, 2, {"MS0"}},
      {"steps", {"--steps", "0"}, 2, {"--steps"}},
      {"schedule", {"--schedule", "cosin"}, 2, {"--schedule", "cosine"}},
      {"dtype", {"--dtype", "float16"}, 2, {"--dtype", "bfloat16"}},
      {"option", {"--learning-rate", "1"}, 2, {"there is no option '--learning-rate'"}},
      {"betas", {"--betas", "0.9,2"}, 2, {"--betas"}},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    Words words = {"--steps", "2"};
    words.insert(row.name == "steps" ? words.end() - 2 : words.end(), row.more.begin(), row.more.end());
    if (row.name == "steps") words.resize(2);
    const Outcome done = RunTraining(TrainWords(folder, words));
    INFO(done.ToText());
    CHECK(done.code == row.code);
    CHECK(done.out.empty());
    for (const std::string& said : row.said) CHECK_THAT(done.err, Contains(said));
    CHECK_THAT(done.err, !Contains("defect") && !Contains("failed first"));
  }
  const Outcome ddp = RunTraining(TrainWords(folder, {"--steps", "2", "--mesh", "dp=2", "--plan", plan}));
  INFO(ddp.ToText());
  CHECK(ddp.code == 0);
}

}  // namespace
}  // namespace moonshard::test
