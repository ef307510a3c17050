// Adapters in PEFT's files: those that PEFT wrote (tests/parity/make_adapters.py), and files that are wrong.
#include "engine/io/checkpoint/stored_adapter.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/writer.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

const std::string kAdapters = SourcePath("tests/parity/adapters/");

std::vector<std::string> SectionsOf(const StoredAdapter& adapter) {
  std::vector<std::string> out;
  for (const Adapter& section : adapter.sections) out.push_back(ToText(section));
  return out;
}

TEST_CASE("the files of PEFT are sections of a plan, with the tensors of their factors") {
  const StoredAdapter all = ReadAdapter(kAdapters + "all_linear").ValueOrThrow();
  CHECK(SectionsOf(all) ==
        std::vector<std::string>{"lora default [model.layers.{0..1}.mlp.down_proj] rank=2 alpha=6",
                                 "lora default [model.layers.{0..1}.self_attn.k_proj] rank=4 alpha=3",
                                 "lora default [lm_head, model.layers.{0..1}.mlp.gate_proj, "
                                 "model.layers.{0..1}.mlp.up_proj, "
                                 "model.layers.{0..1}.self_attn.o_proj, model.layers.{0..1}.self_attn.q_proj, "
                                 "model.layers.{0..1}.self_attn.v_proj] rank=4 alpha=6"});
  CHECK(all.stored_as.size() == 30);
  CHECK(all.stored_as.at("lm_head.lora_B.default") == "base_model.model.lm_head.lora_B.weight");
  CHECK(all.section_of.at("model.layers.1.self_attn.k_proj") == 1);

  const StoredAdapter scaled = ReadAdapter(kAdapters + "rslora").ValueOrThrow();
  CHECK(SectionsOf(scaled) == std::vector<std::string>{"lora default [model.layers.{0..1}.mlp.down_proj, "
                                                       "model.layers.{0..1}.self_attn.q_proj] rank=3 alpha=5 rslora"});
}

void WriteFactors(const std::string& path, std::vector<TensorSpec> specs) {
  SafetensorsWriter::SortForWriting(specs);
  const WrittenHeader header = WriteHeader(path, specs, {{"format", "pt"}}).ValueOrThrow();
  std::string text = header.text;
  for (const TensorSpec& spec : specs) {
    size_t elements = 1;
    for (const int64_t size : spec.shape) elements *= static_cast<size_t>(size);
    text += std::string(4 * elements, '\0');
  }
  std::ofstream(path, std::ios::binary) << text;
}

TEST_CASE("an adapter that no plan can declare is refused, and each reason told") {
  struct Case {
    std::string name;
    std::function<void(JsonValue::Object&)> change;
    std::vector<TensorSpec> factors;
    std::string message;
  };
  const std::vector<TensorSpec> good = {{"base_model.model.q.lora_A.weight", DType::kF32, {2, 6}},
                                        {"base_model.model.q.lora_B.weight", DType::kF32, {4, 2}}};
  const auto set = [](const char* key, const JsonValue& value) {
    return [key, value](JsonValue::Object& config) { config[key] = value; };
  };
  const auto with = [&](TensorSpec more) {
    std::vector<TensorSpec> out = good;
    out.push_back(std::move(more));
    return out;
  };
  const auto none = [](JsonValue::Object&) {};
  const std::vector<Case> cases = {
      {"another type", set("peft_type", "IA3"), good, "the adapter is not a LoRA"},
      {"dora", set("use_dora", true), good, "the adapter has 'use_dora', which no plan can declare"},
      {"biases", set("bias", "lora_only"), good, "the adapter trains biases"},
      {"saved modules", set("modules_to_save", JsonValue::Array{"lm_head"}), good, "'modules_to_save'"},
      {"stacked", set("target_parameters", JsonValue::Array{"w1"}), good, "'target_parameters'"},
      {"text", set("lora_alpha", "8"), good, "lora_alpha is no number"},
      {"dropout", set("lora_dropout", 1.5), good, "lora_dropout is 1.5"},
      {"rank", set("r", 3), good, "the factors of 'q' have another rank than the config"},
      {"expression", set("alpha_pattern", JsonValue::Object{{"q(", 3}}), good, "alpha_pattern has 'q('"},
      {"two keys", set("alpha_pattern", JsonValue::Object{{"q", 3}, {".*q", 4}}), good,
       "'q' has two values in alpha_pattern, by '.*q' and 'q'"},
      {"half", none, {good[0]}, "'q' has no lora_B in the adapter"},
      {"ranks",
       none,
       {good[0], {"base_model.model.q.lora_B.weight", DType::kF32, {4, 3}}},
       "the factors of 'q' do not fit together"},
      {"an embedding", none, with({"base_model.model.e.lora_embedding_A", DType::kF32, {2, 6}}),
       "tensor 'base_model.model.e.lora_embedding_A' is no factor of a Linear module"},
      {"nothing", none, {}, "the adapter has no factors"},
  };
  for (const Case& one : cases) {
    DYNAMIC_SECTION(one.name) {
      const ScratchFolder folder;
      JsonValue::Object config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"bias", "none"}};
      one.change(config);
      folder.Write("adapter_config.json", WriteJson(config, 2));
      WriteFactors(folder / "adapter_model.safetensors", one.factors);
      const Result<StoredAdapter> read = ReadAdapter(folder / "");
      REQUIRE_FALSE(read.ok());
      CHECK_THAT(ToText(read.diagnostics()), Contains(one.message));
    }
  }
  const ScratchFolder empty;
  CHECK(ReadAdapter(empty / "").diagnostics().size() == 2);
}

TEST_CASE("a key of alpha_pattern is the end of a path") {
  const ScratchFolder folder;
  const JsonValue::Object config = {{"peft_type", "LORA"},
                                    {"r", 2},
                                    {"lora_alpha", 4},
                                    {"alpha_pattern", JsonValue::Object{{"layers\\.[01]\\.q", 1}, {"proj", 2}}}};
  folder.Write("adapter_config.json", WriteJson(config, 2));
  std::vector<TensorSpec> factors;
  for (const char* path : {"m.layers.0.q", "m.layers.2.q", "m.layers.1.q", "m.proj", "m.q_proj"}) {
    factors.push_back({"base_model.model." + std::string(path) + ".lora_A.weight", DType::kF32, {2, 6}});
    factors.push_back({"base_model.model." + std::string(path) + ".lora_B.weight", DType::kF32, {4, 2}});
  }
  WriteFactors(folder / "adapter_model.safetensors", factors);
  CHECK(SectionsOf(ReadAdapter(folder / "").ValueOrThrow()) ==
        std::vector<std::string>{"lora default [m.layers.{0..1}.q] rank=2 alpha=1",
                                 "lora default [m.proj] rank=2 alpha=2",
                                 "lora default [m.layers.2.q, m.q_proj] rank=2 alpha=4"});
}

}  // namespace
}  // namespace moonshard::test
