// Training adapters: saved, resumed on another mesh, and merged into the base model and PEFT's files.
#include <catch2/catch.hpp>

#include <filesystem>
#include <map>

#include "engine/io/safetensors/checkpoint.h"
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

}  // namespace
}  // namespace moonshard::test
