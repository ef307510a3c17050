// Training adapters: saved, resumed on another mesh, and merged into the base model and PEFT's files.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "tests/dsl/commands/train/runs.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

std::string PlanWith(const ScratchFolder& folder, const std::string& sections) {
  return folder.Write("plan.lua", "return plan { extends \"llama\", " + sections + " }");
}

void TrainHere(const ScratchFolder& folder, const std::string& mesh, const std::string& log, const std::string& steps,
               const Words& more) {
  Words words = {"--mesh", mesh, "--decay-steps", "6", "--steps", steps, "--log", folder / log};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome done = RunTraining(TrainWords(folder, words));
  INFO(done.ToText());
  REQUIRE(done.code == 0);
}

TEST_CASE("a run with adapters resumes to the bit, also with dropout, and goes on on another mesh") {
  const ScratchFolder folder;
  const std::string dropped =
      PlanWith(folder, "lora { at = \"model.layers.*.self_attn.{q,v}_proj\", rank = 4, alpha = 64, dropout = 0.2 }");
  TrainHere(folder, "dp=2,tp=2", "whole", "6", {"--plan", dropped});
  TrainHere(folder, "dp=2,tp=2", "parts", "3", {"--plan", dropped, "--save", folder / "run"});
  TrainHere(folder, "dp=2,tp=2", "parts", "6", {"--plan", dropped, "--save", folder / "run", "--resume"});
  CHECK(Numbers(folder / "parts") == Numbers(folder / "whole"));

  const std::string plan =
      PlanWith(folder, "lora { at = \"model.layers.*.self_attn.{q,v}_proj\", rank = 4, alpha = 64 }");
  const Words exact = {"--plan", plan, "--dtype", "float64"};
  const auto with = [&](const Words& more) {
    Words words = exact;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  TrainHere(folder, "tp=1", "one", "6", exact);
  TrainHere(folder, "dp=2,tp=2", "moved", "3", with({"--save", folder / "other"}));
  TrainHere(folder, "tp=4", "moved", "6", with({"--save", folder / "other", "--resume"}));
  const std::vector<double> losses = Losses(folder / "one");
  REQUIRE(losses.size() == 6);
  CHECK(losses.back() < losses.front());
  ExpectNear(Losses(folder / "moved"), losses, 1e-9);
}

TEST_CASE("merging a step of adapters gives the base model, byte for byte, and PEFT's files") {
  const ScratchFolder folder;
  const std::string plan = PlanWith(folder,
                                    "lora { at = \"model.layers.1.mlp.down_proj\", rank = 2, alpha = 3 }, "
                                    "lora { at = \"model.layers.*.{self_attn.q_proj,mlp.down_proj}\", rank = 4, "
                                    "alpha = 64, dropout = 0.25 }");
  TrainHere(folder, "dp=2,tp=2", "log", "2", {"--plan", plan, "--save", folder / "run"});
  const Outcome merged = RunExecutable(ExecutablePath(), {"merge", folder / "run/step_00000002", folder / "out"});
  INFO(merged.ToText());
  REQUIRE(merged.code == 0);
  for (const auto& entry : fs::directory_iterator(kModel)) {
    const std::string name = entry.path().filename();
    INFO(name);
    CHECK(ReadWholeFile(folder / ("out/" + name)) == ReadWholeFile(entry.path()));
  }
  const JsonValue config = ParseJson(ReadWholeFile(folder / "out/adapter/adapter_config.json"), "").ValueOrThrow();
  CHECK(config.Find("peft_type")->AsString() == "LORA");
  CHECK(config.Find("r")->AsInt() == 4);
  CHECK(config.Find("lora_alpha")->AsDouble() == 64);
  CHECK(config.Find("lora_dropout")->AsDouble() == 0.25);
  CHECK_FALSE(config.Find("use_rslora")->AsBool());
  CHECK(WriteJson(*config.Find("rank_pattern"), 0) == R"({"model.layers.1.mlp.down_proj":2})");
  CHECK(config.Find("alpha_pattern")->AsObject().size() == 1);
  CHECK(config.Find("target_modules")->AsArray().size() == 4);

  const Checkpoint adapter = Checkpoint::OpenFile(folder / "out/adapter/adapter_model.safetensors").ValueOrThrow();
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const StoredTensor& tensor : adapter.tensors()) shapes[tensor.name] = tensor.shape;
  CHECK(shapes == std::map<std::string, std::vector<int64_t>>{
                      {"base_model.model.model.layers.0.mlp.down_proj.lora_A.weight", {4, 96}},
                      {"base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", {64, 4}},
                      {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", {4, 64}},
                      {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", {64, 4}},
                      {"base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", {2, 96}},
                      {"base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", {64, 2}},
                      {"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", {4, 64}},
                      {"base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", {64, 4}}});
}

// The values of a tensor of float32 or float64 in a file.
std::vector<double> ValuesIn(const std::string& path, const std::string& name) {
  const Checkpoint file = Checkpoint::OpenFile(path).ValueOrThrow();
  const StoredTensor* tensor = file.Find(name);
  REQUIRE(tensor);
  std::string bytes(tensor->bytes, '\0');
  ShardReader reader(file);
  REQUIRE_FALSE(reader.ReadFull(*tensor, bytes.data()));
  const size_t size = tensor->dtype == DType::kF64 ? sizeof(double) : sizeof(float);
  std::vector<double> out;
  for (size_t at = 0; at < bytes.size(); at += size) {
    float single = 0;
    double wide = 0;
    std::memcpy(size == sizeof(double) ? static_cast<void*>(&wide) : &single, bytes.data() + at, size);
    out.push_back(size == sizeof(double) ? wide : single);
  }
  return out;
}

TEST_CASE("an adapter in PEFT's files is evaluated, trained, written again, and merged into the weights") {
  const ScratchFolder folder;
  const std::string adapter = SourcePath("tests/parity/adapters/all_linear");
  const std::vector<double> expected = ValuesIn(adapter + "/expected.safetensors", "logits");
  // The largest difference from PEFT's logits.
  const auto difference = [&](const std::string& model, const Words& more) {
    Words words = {"eval", model, "--input", kModel + "/inputs_1.safetensors", "--output", folder / "out.safetensors"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunExecutable(ExecutablePath(), words, {"OMP_NUM_THREADS=1"}, 120);
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    const std::vector<double> made = ValuesIn(folder / "out.safetensors", "logits");
    REQUIRE(made.size() == expected.size());
    double most = 0;
    for (size_t i = 0; i < made.size(); ++i) most = std::max(most, std::abs(made[i] - expected[i]));
    return most;
  };
  constexpr double kMost = 2e-4;
  CHECK(difference(kModel, {}) > 0.1);
  CHECK(difference(kModel, {"--adapter", adapter}) < kMost);
  CHECK(difference(kModel, {"--adapter", adapter, "--mesh", "tp=2"}) < kMost);

  const Outcome merged = RunExecutable(ExecutablePath(), {"merge", kModel, folder / "merged", "--adapter", adapter});
  INFO(merged.ToText());
  REQUIRE(merged.code == 0);
  CHECK(difference(folder / "merged", {"--mesh", "tp=2"}) < kMost);

  // A step that changes nothing: the factors are written as they were read, in the dtype of the run.
  TrainHere(folder, "dp=2,tp=2", "log", "1",
            {"--adapter", adapter, "--lr", "0", "--weight-decay", "0", "--dtype", "float64", "--save", folder / "run"});
  const Outcome step = RunExecutable(ExecutablePath(), {"merge", folder / "run/step_00000001", folder / "model"});
  INFO(step.ToText());
  REQUIRE(step.code == 0);
  const std::string again = folder / "model/adapter";
  const Checkpoint read = Checkpoint::OpenFile(adapter + "/adapter_model.safetensors").ValueOrThrow();
  CHECK(Checkpoint::OpenFile(again + "/adapter_model.safetensors").ValueOrThrow().tensors().size() ==
        read.tensors().size());
  for (const StoredTensor& tensor : read.tensors()) {
    INFO(tensor.name);
    CHECK(ValuesIn(again + "/adapter_model.safetensors", tensor.name) ==
          ValuesIn(adapter + "/adapter_model.safetensors", tensor.name));
  }
  CHECK(difference(kModel, {"--adapter", again, "--mesh", "tp=4"}) < kMost);
  TrainHere(folder, "tp=2", "more", "4", {"--adapter", again});
  CHECK(Losses(folder / "more").back() < Losses(folder / "more").front());
}

// An adapter of a model, and the words of a run with it.
struct RoundTrip {
  std::string model;
  std::string adapter;
  Words words;
  bool exact = true;  // a run in float64 writes the factors as they were read
};

TEST_CASE("adapters of lookups, of experts and of programs are evaluated, trained, written again, and merged") {
  const std::string parity = SourcePath("tests/parity/");
  const RoundTrip trips[] = {
      {"llama_vocab331", "tokens", {"--mesh", "tp=2"}},
      {"mixtral", "experts", {"--mesh", "tp=2", "--option", "expert_parallel=true"}},
      {"mixtral", "experts_stacked", {"--mesh", "ep=2", "--option", "exchange=true"}, false},
      {"llama_gqa", "all_linear", {"--mesh", "tp=2", "--program", parity + "programs/reference/llama_gqa.pt2"}, false},
  };
  for (const RoundTrip& trip : trips) {
    DYNAMIC_SECTION(trip.adapter << (trip.words.size() > 2 ? " " + trip.words[2] : "")) {
      const ScratchFolder folder;
      const std::string model = parity + trip.model;
      const std::string adapter = parity + "adapters/" + trip.adapter;
      const std::vector<double> expected = ValuesIn(adapter + "/expected.safetensors", "logits");
      const auto run = [&](Words words, const Words& more) {
        words.insert(words.end(), more.begin(), more.end());
        const Outcome done = RunExecutable(ExecutablePath(), words, {"OMP_NUM_THREADS=1"}, 120);
        INFO(done.ToText());
        REQUIRE(done.code == 0);
      };
      const auto difference = [&](const std::string& of, const Words& more) {
        run({"eval", of, "--input", model + "/inputs_1.safetensors", "--output", folder / "out.safetensors"}, more);
        const std::vector<double> made = ValuesIn(folder / "out.safetensors", "logits");
        REQUIRE(made.size() == expected.size());
        double most = 0;
        for (size_t i = 0; i < made.size(); ++i) most = std::max(most, std::abs(made[i] - expected[i]));
        return most;
      };
      const auto with = [&](Words more) {
        more.insert(more.end(), trip.words.begin(), trip.words.end());
        return more;
      };
      constexpr double kMost = 2e-4;
      CHECK(difference(model, trip.words) > 0.1);
      CHECK(difference(model, with({"--adapter", adapter})) < kMost);
      run({"merge", model, folder / "merged", "--adapter", adapter}, {});
      CHECK(difference(folder / "merged", trip.words) < kMost);

      const auto train = [&](const Words& more) {
        const Outcome done = RunTraining(TrainWords(folder, with(more), model));
        INFO(done.ToText());
        REQUIRE(done.code == 0);
      };
      // A step that changes nothing.
      Words still = {"--steps",        "1", "--adapter", adapter,       "--lr", "0",
                     "--weight-decay", "0", "--save",    folder / "run"};
      if (trip.exact) still.insert(still.end(), {"--dtype", "float64"});
      train(still);
      run({"merge", folder / "run/step_00000001", folder / "model"}, {});
      const std::string again = folder / "model/adapter";
      if (trip.exact) {
        const Checkpoint read = Checkpoint::OpenFile(adapter + "/adapter_model.safetensors").ValueOrThrow();
        const Checkpoint written = Checkpoint::OpenFile(again + "/adapter_model.safetensors").ValueOrThrow();
        CHECK(written.tensors().size() == read.tensors().size());
        for (const StoredTensor& tensor : read.tensors()) {
          INFO(tensor.name);
          CHECK(ValuesIn(written.path(), tensor.name) == ValuesIn(read.path(), tensor.name));
        }
      }
      CHECK(difference(model, with({"--adapter", again})) < kMost);
      train({"--steps", "12", "--lr", "1e-2", "--adapter", again, "--log", folder / "log"});
      CHECK(Losses(folder / "log").back() < Losses(folder / "log").front());
    }
  }
}

TEST_CASE("a new adapter of the token embedding learns, from factors A of zeros, and ranks compute what one does") {
  const ScratchFolder folder;
  const std::string model = SourcePath("tests/parity/llama_vocab331");
  const Words words = {"--mesh", "tp=2",        "--steps", "4", "--lora", "rank=4,alpha=64,target=embed_tokens",
                       "--log",  folder / "log"};
  const Outcome done = RunTraining(TrainWords(folder, words, model));
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  CHECK(Losses(folder / "log").back() < Losses(folder / "log").front());
  const Outcome same = RunExecutable(ExecutablePath(),
                                     {"verify", model, "--mesh", "tp=2", "--lora", "rank=4,target=embed_tokens+q_proj"},
                                     {"OMP_NUM_THREADS=1"}, 120);
  INFO(same.ToText());
  CHECK(same.code == 0);
}

// Not of w2, whose input is a shard: it draws numbers of its own rank.
TEST_CASE("ranks that own an expert and ranks that do not drop the same elements") {
  const ScratchFolder folder;
  const auto losses = [&](const std::string& mesh, const Words& more) {
    Words words = {"--mesh",  mesh,      "--steps", "3",
                   "--dtype", "float64", "--log",   folder / mesh,
                   "--lr",    "1e-2",    "--lora",  "rank=3,alpha=32,dropout=0.5,target=w1+w3+v_proj+gate"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunTraining(TrainWords(folder, words, SourcePath("tests/parity/mixtral")));
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return Losses(folder / mesh);
  };
  const std::vector<double> one = losses("tp=1", {});
  REQUIRE(one.size() == 3);
  ExpectNear(losses("tp=2", {"--option", "expert_parallel=true"}), one, 1e-9);
}

TEST_CASE("an adapter of another model is refused by every verb, with what does not fit") {
  const ScratchFolder folder;
  const std::string adapter = SourcePath("tests/parity/adapters/packed");  // of a model with fused projections
  for (const Words& words : {Words{"check", kModel, "--mesh", "tp=2"}, Words{"explain", kModel, "--mesh", "tp=2"},
                             Words{"eval", kModel, "--mesh", "tp=2", "--input", kModel + "/inputs_1.safetensors",
                                   "--output", folder / "out"},
                             Words{"merge", kModel, folder / "merged"}}) {
    Words all = words;
    all.insert(all.end(), {"--adapter", adapter});
    const Outcome done = RunExecutable(ExecutablePath(), all, {"OMP_NUM_THREADS=1"}, 120);
    INFO(done.ToText());
    CHECK(done.code == (words.front() == "check" ? 1 : 2));
    CHECK_THAT(words.front() == "check" ? done.out : done.err, Contains("gate_up_proj"));
  }
}

TEST_CASE("a tensor of stacked experts that does not fit the model is one error") {
  const ScratchFolder folder;
  const std::string model = SourcePath("tests/parity/routers/mixtral");  // of other sizes, with as many experts
  const Outcome done = RunExecutable(ExecutablePath(),
                                     {"eval", model, "--input", model + "/inputs_1.safetensors", "--output",
                                      folder / "out", "--adapter", SourcePath("tests/parity/adapters/experts_stacked")},
                                     {"OMP_NUM_THREADS=1"}, 120);
  INFO(done.ToText());
  CHECK(done.code == 2);
  size_t errors = 0;
  for (size_t at = 0; (at = done.err.find(" of the adapter does not fit '", at)) != std::string::npos; ++at) ++errors;
  CHECK(errors == 12);  // those of the file
}

TEST_CASE("what does not go with adapters is refused") {
  const ScratchFolder folder;
  const std::string head = PlanWith(folder, "lora { at = \"lm_head\", rank = 4 }");
  const Outcome chunks =
      RunTraining(TrainWords(folder, {"--mesh", "tp=2", "--plan", head, "--steps", "1", "--loss-chunk", "8"}));
  INFO(chunks.ToText());
  CHECK(chunks.code == 1);
  CHECK_THAT(chunks.err, Contains("the head has an adapter") && Contains("no adapter of the head, or no --loss-chunk"));

  // Another plan than the one that the step was saved with.
  const std::string saved = folder.Write("saved.lua", "return plan { extends \"llama\" }");
  TrainHere(folder, "tp=2", "log", "1", {"--plan", saved, "--save", folder / "run"});
  const Outcome resumed = RunTraining(
      TrainWords(folder, {"--mesh", "tp=2", "--plan", head, "--steps", "2", "--save", folder / "run", "--resume"}));
  INFO(resumed.ToText());
  CHECK(resumed.code == 2);
  CHECK_THAT(resumed.err, Contains("the checkpoint has no tensor 'lm_head.lora_A.default'"));
}

TEST_CASE("train --lora trains a new adapter as a plan with that section does, and resumes") {
  const ScratchFolder folder;
  const std::string plan =
      PlanWith(folder, "lora { at = \"model.layers.*.self_attn.{q,v}_proj\", rank = 4, alpha = 64 }");
  const Words lora = {"--lora", "rank=4,alpha=64"};  // with the targets that PEFT has for llama
  TrainHere(folder, "dp=2,tp=2", "by_plan", "4", {"--plan", plan, "--option", "sequence_parallel=true"});
  Words words = lora;
  words.insert(words.end(), {"--plan", "llama", "--option", "sequence_parallel=true", "--save", folder / "run"});
  TrainHere(folder, "dp=2,tp=2", "by_option", "2", words);
  words.emplace_back("--resume");
  TrainHere(folder, "dp=2,tp=2", "by_option", "4", words);
  CHECK(Numbers(folder / "by_option") == Numbers(folder / "by_plan"));

  const Outcome merged = RunExecutable(ExecutablePath(), {"merge", folder / "run/step_00000004", folder / "out"});
  INFO(merged.ToText());
  REQUIRE(merged.code == 0);
  const JsonValue config = ParseJson(ReadWholeFile(folder / "out/adapter/adapter_config.json"), "").ValueOrThrow();
  CHECK(config.Find("r")->AsInt() == 4);
  CHECK(config.Find("lora_alpha")->AsDouble() == 64);
  CHECK(WriteJson(*config.Find("target_modules"), 0) ==
        R"(["model.layers.0.self_attn.q_proj","model.layers.0.self_attn.v_proj",)"
        R"("model.layers.1.self_attn.q_proj","model.layers.1.self_attn.v_proj"])");

  // Another scale is another run.
  const Outcome changed = RunTraining(
      TrainWords(folder, {"--mesh", "dp=2,tp=2", "--decay-steps", "6", "--steps", "5", "--plan", "llama", "--option",
                          "sequence_parallel=true", "--save", folder / "run", "--resume", "--lora", "rank=4,alpha=8"}));
  INFO(changed.ToText());
  CHECK_THAT(changed.err, Contains("adapters") && Contains("rank=4 alpha=64 of 4 modules") &&
                              Contains("rank=4 alpha=8 of 4 modules"));
}

TEST_CASE("of several adapters the active one is evaluated and trained, and the others are stored") {
  const ScratchFolder folder;
  const std::string adapters = SourcePath("tests/parity/adapters/");
  const Words both = {"--adapter", "all=" + adapters + "all_linear", "--adapter", "some=" + adapters + "rslora"};
  const auto evaluate = [&](const Words& more, const std::string& expected) {
    Words words = {"eval", kModel, "--input", kModel + "/inputs_1.safetensors", "--output", folder / "out.safetensors"};
    words.insert(words.end(), both.begin(), both.end());
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunExecutable(ExecutablePath(), words, {"OMP_NUM_THREADS=1"}, 120);
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    const std::vector<double> want = ValuesIn(adapters + expected + "/expected.safetensors", "logits");
    const std::vector<double> made = ValuesIn(folder / "out.safetensors", "logits");
    REQUIRE(made.size() == want.size());
    double most = 0;
    for (size_t i = 0; i < made.size(); ++i) most = std::max(most, std::abs(made[i] - want[i]));
    CHECK(most < 2e-4);
  };
  evaluate({}, "all_linear");
  evaluate({"--active", "some", "--mesh", "tp=2"}, "rslora");

  Words words = both;
  words.insert(words.end(), {"--active", "some", "--lr", "0", "--weight-decay", "0", "--save", folder / "run"});
  TrainHere(folder, "tp=2", "log", "1", words);
  const Outcome merged = RunExecutable(ExecutablePath(), {"merge", folder / "run/step_00000001", folder / "model"});
  INFO(merged.ToText());
  REQUIRE(merged.code == 0);
  const JsonValue config = ParseJson(ReadWholeFile(folder / "model/adapter/adapter_config.json"), "").ValueOrThrow();
  CHECK(config.Find("r")->AsInt() == 3);
  CHECK(config.Find("use_rslora")->AsBool());
  const std::string factor = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
  CHECK(ValuesIn(folder / "model/adapter/adapter_model.safetensors", factor) ==
        ValuesIn(adapters + "rslora/adapter_model.safetensors", factor));

  Words unknown = {"explain", kModel, "--active", "other"};
  unknown.insert(unknown.end(), both.begin(), both.end());
  const Outcome none = RunExecutable(ExecutablePath(), unknown);
  CHECK(none.code == 2);
  CHECK_THAT(none.err, Contains("there is no adapter 'other'") && Contains("the name of an adapter: all, some"));
  const Outcome mixed =
      RunExecutable(ExecutablePath(), {"check", kModel, "--adapter", adapters + "rslora", "--lora", "rank=2"});
  CHECK(mixed.code == 1);
  CHECK_THAT(mixed.out, Contains("--adapter and --lora are given"));
}

}  // namespace
}  // namespace moonshard::test
