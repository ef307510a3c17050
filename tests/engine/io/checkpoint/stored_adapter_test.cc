// Adapters in PEFT's files: those that PEFT wrote (tests/parity/make_adapters.py), and files that are wrong.
#include "engine/io/checkpoint/stored_adapter.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/writer.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

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
  CHECK(all.made_of.size() == 30);
  CHECK(all.made_of.at("lm_head.lora_B.default").tensor == "base_model.model.lm_head.lora_B.weight");
  CHECK(all.section_of.at("model.layers.1.self_attn.k_proj") == 1);

  const StoredAdapter tokens = ReadAdapter(kAdapters + "tokens").ValueOrThrow();
  CHECK(SectionsOf(tokens) ==
        std::vector<std::string>{"lora default [model.embed_tokens] rank=3 alpha=4",
                                 "lora default [model.layers.{0..1}.mlp.up_proj] rank=3 alpha=5"});
  CHECK(tokens.made_of.at("model.embed_tokens.lora_A.default").tensor ==
        "base_model.model.model.embed_tokens.lora_embedding_A");

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
      {"stacked", set("target_parameters", JsonValue::Array{"experts.down_proj"}), good,
       "the adapter has 'target_parameters', of a model of type ''"},
      {"tied", set("ensure_weight_tying", true), good, "'ensure_weight_tying'"},
      {"kasa", set("kasa_config", JsonValue::Object{{"beta", 1}}), good, "'kasa_config'"},
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
      {"half a lookup", none, with({"base_model.model.e.lora_embedding_A", DType::kF32, {2, 6}}),
       "'e' has no lora_B in the adapter"},
      {"both forms", none, with({"base_model.model.q.lora_embedding_B", DType::kF32, {4, 2}}),
       "'q' has factors of a Linear module and of a lookup"},
      {"no factor", none, with({"base_model.model.e.lora_embedding_C", DType::kF32, {2, 6}}),
       "tensor 'base_model.model.e.lora_embedding_C' is no factor of a Linear module or a lookup"},
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

TEST_CASE("factors of stacked experts are those of each expert of a list") {
  const StoredAdapter stacked =
      ReadAdapter(kAdapters + "experts_stacked", {}, Adapter().name, {.type = "mixtral", .experts = 4}).ValueOrThrow();
  CHECK(SectionsOf(stacked) ==
        std::vector<std::string>{
            "lora default [model.layers.{0..1}.block_sparse_moe.experts.{0..3}.w1, "
            "model.layers.{0..1}.block_sparse_moe.experts.{0..3}.w3, model.layers.{0..1}.self_attn.q_proj] rank=2 "
            "alpha=3",
            "lora default [model.layers.{0..1}.block_sparse_moe.experts.{0..3}.w2] rank=3 alpha=5"});
  CHECK(stacked.made_of.size() == 52);
  CHECK(stacked.section_of.size() == 26);
  ShardReader reader(stacked.checkpoint);
  FactorSource source(stacked.checkpoint, reader);
  const auto values = [&](const WeightRecipe& recipe, std::vector<int64_t> shape) {
    std::string why;
    REQUIRE(MadeBy(recipe, source, why) == RecipeTensor{DType::kF64, shape});
    std::vector<double> out(static_cast<size_t>(shape[0] * shape[1]));
    REQUIRE_FALSE(ReadRecipe(recipe, source, FullShard(shape), out.data()));
    return out;
  };
  const std::string block = "base_model.model.model.layers.1.mlp.experts";
  const WeightRecipe first{.tensor = block + ".base_layer.lora_A.weight"};
  const WeightRecipe second{.tensor = block + ".base_layer.lora_B.weight"};
  const std::vector<double> all_a = values(first, {8, 32});   // [expert, rank, in]
  const std::vector<double> all_b = values(second, {40, 8});  // [out, rank, expert]
  for (int64_t expert = 0; expert < 4; ++expert) {
    for (const bool up : {false, true}) {
      const std::string path =
          "model.layers.1.block_sparse_moe.experts." + std::to_string(expert) + (up ? ".w3" : ".w1");
      const std::vector<double> a = values(stacked.made_of.at(path + ".lora_A.default"), {2, 32});
      const std::vector<double> b = values(stacked.made_of.at(path + ".lora_B.default"), {20, 2});
      CHECK(std::equal(a.begin(), a.end(), all_a.begin() + expert * 2 * 32));
      for (int64_t row = 0; row < 20; ++row) {
        for (int64_t k = 0; k < 2; ++k)
          CHECK(b[static_cast<size_t>(row * 2 + k)] ==
                all_b[static_cast<size_t>((row + (up ? 20 : 0)) * 8 + k * 4 + expert)]);
      }
    }
  }
  const StoredAdapter other =
      ReadAdapter(kAdapters + "experts_stacked", {}, "x", {.type = "qwen3_moe", .experts = 4}).ValueOrThrow();
  CHECK(other.made_of.contains("model.layers.0.mlp.experts.3.down_proj.lora_A.x"));
}

TEST_CASE("factors of stacked experts that do not fit the config are refused") {
  struct Case {
    std::string name;
    JsonValue targets;
    std::vector<TensorSpec> factors;
    std::string message;
  };
  const std::string block = "base_model.model.0.mlp.experts";
  const auto factors = [&](const std::string& of, int64_t rows, int64_t out, int64_t columns) {
    return std::vector<TensorSpec>{{block + of + ".lora_A.weight", DType::kF32, {rows, 6}},
                                   {block + of + ".lora_B.weight", DType::kF32, {out, columns}}};
  };
  const Case cases[] = {
      {"router", JsonValue::Array{"gate.weight"}, factors("", 4, 6, 4), "target_parameters has \"gate.weight\""},
      {"rank", JsonValue::Array{"experts.down_proj"}, factors("", 5, 6, 5),
       "the factors of '0.mlp.experts.down_proj' do not fit the config"},
      {"columns", JsonValue::Array{"experts.down_proj"}, factors("", 4, 6, 2),
       "the factors of '0.mlp.experts' do not fit together"},
      {"odd", JsonValue::Array{"experts.gate_up_proj"}, factors("", 4, 7, 4),
       "the factors of '0.mlp.experts.gate_up_proj' do not fit the config"},
      {"depth", JsonValue::Array{"experts.down_proj"}, factors(".base_layer", 4, 6, 4),
       "target_parameters has no parameter for the factors of '0.mlp.experts.base_layer'"},
      {"fewer experts", JsonValue::Array{"experts.down_proj"}, factors("", 2, 6, 2),
       "of rank 2 in the adapter's config, and 2 experts in the model's"},
      {"more experts", JsonValue::Array{"experts.down_proj"}, factors("", 6, 6, 6),
       "required: lora_A [2 * 2, in], lora_B [out, 2 * 2]"},
  };
  for (const Case& one : cases) {
    DYNAMIC_SECTION(one.name) {
      const ScratchFolder folder;
      folder.Write(
          "adapter_config.json",
          WriteJson(
              JsonValue::Object{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_parameters", one.targets}},
              2));
      WriteFactors(folder / "adapter_model.safetensors", one.factors);
      const Result<StoredAdapter> read = ReadAdapter(folder / "", {}, "x", {.type = "mixtral", .experts = 2});
      REQUIRE_FALSE(read.ok());
      CHECK_THAT(ToText(read.diagnostics()), Contains(one.message));
    }
  }
}

TEST_CASE("the rank of a stack is that of the config, and its number of experts that of the model") {
  const auto read = [](const std::string& path, const AdaptedModel& model) {
    return ToText(ReadAdapter(path, {}, "x", model).diagnostics());
  };
  const std::string stacked = kAdapters + "experts_stacked";
  CHECK(read(stacked, {.type = "mixtral", .experts = 4}).empty());
  CHECK_THAT(read(stacked, {.type = "mixtral", .experts = 8}), Contains("8 experts in the model's"));
  CHECK_THAT(read(stacked, {.type = "mixtral", .experts = {}}), Contains("8 experts in the model's"));  // by default
  CHECK_THAT(read(stacked, {.type = "qwen3_moe", .experts = {}}), Contains("128 experts in the model's"));
  // Ranks that divide the rows of the file.
  const ScratchFolder folder;
  folder.CopyOf(stacked, "adapter");
  const std::string config = ReadWholeFile(stacked + "/adapter_config.json");
  folder.Write("adapter/adapter_config.json", Replaced(config, "\"r\": 2", "\"r\": 4"));
  CHECK_THAT(read(folder / "adapter", {.type = "mixtral", .experts = 4}),
             Contains("lora_A [4 * 4, in]") && Contains("of rank 4 in the adapter's config"));

  const AdaptedModel model = AdaptedModelOf(
      ModelConfig(JsonValue::Object{{"model_type", "mixtral"}, {"num_experts", 6}, {"num_local_experts", 5}}));
  CHECK(model.type == "mixtral");
  CHECK(model.experts == 5);
  CHECK(AdaptedModelOf(ModelConfig(JsonValue::Object{{"num_experts", 6}})).experts == 6);
  CHECK_FALSE(AdaptedModelOf(ModelConfig()).experts);
}

TEST_CASE("a refusal of stacked experts is one error, and names the program") {
  const std::string stacked = kAdapters + "experts_stacked";
  const Diagnostics other = ReadAdapter(stacked, {}, "x", {.type = "llama", .experts = {}}).diagnostics();
  REQUIRE(other.size() == 1);
  CHECK_THAT(other.front().message, Contains("of a model of type 'llama'"));
  const Diagnostics program =
      ReadAdapter(stacked, {}, "x", {.type = "mixtral", .experts = 4, .is_program = true}).diagnostics();
  REQUIRE(program.size() == 1);
  CHECK_THAT(program.front().message, Contains("the model is an exported program, whose experts are stacked"));
}

// As PEFT saves an adapter of listed experts that it has read.
TEST_CASE("a parameter of stacked experts without its path is a target of the stacks alone") {
  const ScratchFolder folder;
  const JsonValue config = JsonValue::Object{{"peft_type", "LORA"},
                                             {"r", 2},
                                             {"lora_alpha", 4},
                                             {"rank_pattern", JsonValue::Object{{".*\\.gate_up_proj", 4}}},
                                             {"alpha_pattern", JsonValue::Object{{".*\\.gate_up_proj", 8}}},
                                             {"target_parameters", JsonValue::Array{"down_proj", "gate_up_proj"}}};
  folder.Write("adapter_config.json", WriteJson(config, 2));
  const std::string layer = "base_model.model.layer.";
  WriteFactors(folder / "adapter_model.safetensors",
               {{layer + "self_attn.v_proj.lora_A.weight", DType::kF32, {2, 6}},
                {layer + "self_attn.v_proj.lora_B.weight", DType::kF32, {3, 2}},
                {layer + "mlp.experts.base_layer.lora_A.weight", DType::kF32, {12, 6}},
                {layer + "mlp.experts.base_layer.lora_B.weight", DType::kF32, {10, 12}},
                {layer + "mlp.experts.lora_A.weight", DType::kF32, {6, 5}},
                {layer + "mlp.experts.lora_B.weight", DType::kF32, {6, 6}}});
  const StoredAdapter adapter = ReadAdapter(folder / "", {}, "x", {.type = "mixtral", .experts = 3}).ValueOrThrow();
  CHECK(SectionsOf(adapter) ==
        std::vector<std::string>{
            "lora x [layer.block_sparse_moe.experts.{0..2}.w2, layer.self_attn.v_proj] rank=2 alpha=4",
            "lora x [layer.block_sparse_moe.experts.{0..2}.w1, layer.block_sparse_moe.experts.{0..2}.w3] rank=4 "
            "alpha=8"});
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
