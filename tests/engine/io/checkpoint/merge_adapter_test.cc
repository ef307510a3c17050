// A model directory with an adapter added to its weights.
#include "engine/io/checkpoint/merge_adapter.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/core/base/float_bits.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/writer.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

const std::string kMergedAdapters = SourcePath("tests/parity/adapters/");

const AdaptedModel kMixtral = {.type = "mixtral", .experts = 4};

// The values of a tensor of float32, float64 or bfloat16.
std::vector<double> ValuesOf(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor* tensor = checkpoint.Find(name);
  REQUIRE(tensor);
  std::string bytes(tensor->bytes, '\0');
  ShardReader reader(checkpoint);
  REQUIRE_FALSE(reader.ReadFull(*tensor, bytes.data()));
  const auto size = static_cast<size_t>(BitsOf(tensor->dtype) / 8);
  std::vector<double> out;
  for (size_t at = 0; at < bytes.size(); at += size) {
    float single = 0;
    double wide = 0;
    uint16_t half = 0;
    std::memcpy(size == 8   ? static_cast<void*>(&wide)
                : size == 4 ? static_cast<void*>(&single)
                            : &half,
                bytes.data() + at, size);
    out.push_back(size == 8 ? wide : size == 4 ? single : FromBits(half, kBFloat16));
  }
  return out;
}

// Of a float64 factor of one expert, or of a tensor.
std::vector<double> ValuesMade(const Checkpoint& checkpoint, const WeightRecipe& recipe) {
  if (recipe.kind == WeightRecipe::Kind::kTensor) return ValuesOf(checkpoint, recipe.tensor);
  ShardReader reader(checkpoint);
  CheckpointSource source(checkpoint, reader);
  std::string why;
  const RecipeTensor made = MadeBy(recipe, source, why).value();
  REQUIRE(made.dtype == DType::kF64);
  std::vector<double> out(static_cast<size_t>(made.shape[0] * made.shape[1]));
  REQUIRE_FALSE(ReadRecipe(recipe, source, FullShard(made.shape), out.data()));
  return out;
}

double RoundedTo(DType dtype, double value) {
  if (dtype == DType::kF64) return value;
  return dtype == DType::kF32 ? static_cast<float>(value) : FromBits(ToBits(value, kBFloat16), kBFloat16);
}

// Of every tensor: that of the model, or with scale B A added.
void CheckMerged(const std::string& model, const StoredAdapter& adapter, const std::string& out) {
  const Checkpoint before = Checkpoint::Open(model).ValueOrThrow();
  const Checkpoint after = Checkpoint::Open(out).ValueOrThrow();
  REQUIRE(after.tensors().size() == before.tensors().size());
  size_t changed = 0;
  for (const StoredTensor& tensor : before.tensors()) {
    INFO(tensor.name);
    std::vector<double> wanted = ValuesOf(before, tensor.name);
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    const auto section = adapter.section_of.find(module);
    if (section != adapter.section_of.end() && tensor.name.ends_with(".weight")) {
      ++changed;
      const WeightRecipe& first = adapter.made_of.at(module + ".lora_A.default");
      const std::vector<double> a = ValuesMade(adapter.checkpoint, first);
      const std::vector<double> b = ValuesMade(adapter.checkpoint, adapter.made_of.at(module + ".lora_B.default"));
      const Adapter& of = adapter.sections[section->second];
      const auto rank = static_cast<size_t>(of.rank);
      const size_t columns = a.size() / rank;
      const bool table = first.tensor.ends_with(".lora_embedding_A");
      for (size_t i = 0; i < wanted.size(); ++i) {
        double sum = 0;
        const size_t row = table ? i % (b.size() / rank) : i / columns;  // of B
        const size_t column = table ? i / (b.size() / rank) : i % columns;
        for (size_t k = 0; k < rank; ++k) sum += b[row * rank + k] * a[k * columns + column];
        wanted[i] = RoundedTo(tensor.dtype, wanted[i] + of.alpha / (of.rslora ? std::sqrt(rank) : rank) * sum);
      }
    }
    CHECK(ValuesOf(after, tensor.name) == wanted);
  }
  CHECK(changed == adapter.section_of.size());
  for (const auto& entry : fs::directory_iterator(model)) {
    if (entry.path().extension() == ".safetensors") continue;
    CHECK(ReadWholeFile(out + "/" + entry.path().filename().string()) == ReadWholeFile(entry.path()));
  }
}

TEST_CASE("the merged weights are W + scale B A, rounded once, and all else is the model's") {
  for (const auto& [model, adapter] : {std::pair("llama_gqa", "all_linear"),
                                       {"llama_gqa", "rslora"},
                                       {"phi3_gqa", "packed"},
                                       {"llama_vocab331", "tokens"},
                                       {"mixtral", "experts"},
                                       {"mixtral", "experts_stacked"}}) {
    DYNAMIC_SECTION(adapter) {
      const ScratchFolder folder;
      const std::string source = SourcePath(std::string("tests/parity/") + model);
      const StoredAdapter stored = ReadAdapter(kMergedAdapters + adapter, {}, "default", kMixtral).ValueOrThrow();
      const Checkpoint checkpoint = Checkpoint::Open(source).ValueOrThrow();
      const ConvertSummary done = MergeAdapter(checkpoint, stored, folder / "out").ValueOrThrow();
      CHECK(done.tensors == static_cast<int64_t>(checkpoint.tensors().size()));
      CheckMerged(source, stored, folder / "out");
    }
  }
}

// A model of one Linear of this dtype and size, of numbers between -1 and 1.
void WriteModel(const std::string& path, const std::string& config, std::vector<TensorSpec> specs) {
  fs::create_directories(path);
  std::ofstream(path + "/config.json") << config;
  SafetensorsWriter::SortForWriting(specs);
  std::string text = WriteHeader("model.safetensors", specs, {{"format", "pt"}}).ValueOrThrow().text;
  for (const TensorSpec& spec : specs) {
    int64_t elements = 1;
    for (const int64_t size : spec.shape) elements *= size;
    for (int64_t i = 0; i < elements; ++i) {
      const double value = std::sin(static_cast<double>(i) + static_cast<double>(spec.name.size()));
      const uint16_t half = ToBits(value, kBFloat16);
      const auto single = static_cast<float>(value);
      text += spec.dtype == DType::kBF16 ? std::string(reinterpret_cast<const char*>(&half), 2)
                                         : std::string(reinterpret_cast<const char*>(&single), 4);
    }
  }
  std::ofstream(path + "/model.safetensors", std::ios::binary) << text;
}

StoredAdapter WriteAdapter(const std::string& path, const std::string& module, int64_t out, int64_t in,
                           bool looks_up = false) {
  const auto factor = [&](const std::string& name) {
    return "base_model.model." + module + (looks_up ? ".lora_embedding_" + name : ".lora_" + name + ".weight");
  };
  WriteModel(path, "{}", {{factor("A"), DType::kF32, {2, in}}, {factor("B"), DType::kF32, {out, 2}}});
  fs::rename(path + "/model.safetensors", path + "/adapter_model.safetensors");
  std::ofstream(path + "/adapter_config.json") << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3})";
  return ReadAdapter(path).ValueOrThrow();
}

TEST_CASE("rows longer than a chunk, and weights in bfloat16") {
  const ScratchFolder folder;
  constexpr int64_t kColumns = 600'001;  // of 2 bytes: more than a chunk
  WriteModel(folder / "model", "{}", {{"q.weight", DType::kBF16, {3, kColumns}}, {"k.weight", DType::kBF16, {3, 2}}});
  const StoredAdapter adapter = WriteAdapter(folder / "adapter", "q", 3, kColumns);
  MergeAdapter(Checkpoint::Open(folder / "model").ValueOrThrow(), adapter, folder / "out").ValueOrThrow();
  CheckMerged(folder / "model", adapter, folder / "out");
}

TEST_CASE("an adapter that does not fit the model is refused before anything is written") {
  const auto refused = [](const std::string& config, const std::string& module, int64_t in, DType dtype) {
    const ScratchFolder folder;
    WriteModel(folder / "model", config, {{"lm_head.weight", dtype, {4, 6}}, {"q.weight", DType::kF32, {4, 6}}});
    const StoredAdapter adapter = WriteAdapter(folder / "adapter", module, 4, in);
    const Result<ConvertSummary> done =
        MergeAdapter(Checkpoint::Open(folder / "model").ValueOrThrow(), adapter, folder / "out");
    REQUIRE_FALSE(done.ok());
    CHECK_FALSE(fs::exists(folder / "out"));
    return ToText(done.diagnostics());
  };
  CHECK_THAT(refused("{}", "p", 6, DType::kF32),
             Contains("the model has no tensor 'p.weight' for the adapter") && Contains("q.weight"));
  CHECK_THAT(refused("{}", "q", 5, DType::kF32), Contains("the adapter does not fit 'q.weight'"));
  CHECK_THAT(refused(R"({"tie_word_embeddings": true})", "lm_head", 6, DType::kF32),
             Contains("which is tied to the embedding"));
  CHECK_THAT(refused("{}", "lm_head", 6, DType::kI32), Contains("an adapter cannot be added to 'lm_head.weight'"));
}

TEST_CASE("an adapter of a tied embedding is refused, by the config or by a head that is not stored") {
  const StoredAdapter adapter = ReadAdapter(kMergedAdapters + "tokens_tied").ValueOrThrow();
  const std::string key = R"("tie_word_embeddings": true)";
  for (const auto& [written, tied] :
       {std::pair(key, true), {R"("tie_word_embedding": 1)", true}, {R"("tie_word_embeddings": false)", false}}) {
    INFO(written);
    const ScratchFolder folder;
    const std::string model = folder.CopyOf(SourcePath("tests/parity/qwen2_tied"), "model");
    folder.Write("model/config.json", Replaced(ReadWholeFile(model + "/config.json"), key, written));
    const Result<ConvertSummary> done = MergeAdapter(Checkpoint::Open(model).ValueOrThrow(), adapter, folder / "out");
    CHECK(done.ok() == !tied);
    CHECK(fs::exists(folder / "out") == !tied);
    if (tied) {
      REQUIRE(done.diagnostics().size() == 1);
      CHECK(done.diagnostics().front().path == "model.embed_tokens.weight");
      CHECK_THAT(done.diagnostics().front().message, Contains("which is tied to the head"));
    } else {
      CheckMerged(model, adapter, folder / "out");
    }
  }
}

TEST_CASE("of several lookups the token embedding alone is tied") {
  // Whether merging an adapter of `module` is refused, for a model with these weights.
  const auto refused = [](const std::string& config, const std::vector<std::string>& weights,
                          const std::string& module) {
    const ScratchFolder folder;
    std::vector<TensorSpec> specs;
    for (const std::string& weight : weights) specs.push_back({weight + ".weight", DType::kF32, {4, 6}});
    WriteModel(folder / "model", config, specs);
    const StoredAdapter adapter = WriteAdapter(folder / "adapter", module, 6, 4, /*looks_up=*/true);
    const Result<ConvertSummary> done =
        MergeAdapter(Checkpoint::Open(folder / "model").ValueOrThrow(), adapter, folder / "out");
    if (done.ok()) CheckMerged(folder / "model", adapter, folder / "out");
    return !done.ok();
  };
  const std::vector<std::string> tables = {"h.wte", "h.wpe"};
  const std::vector<std::string> with_head = {"h.wte", "h.wpe", "m.lm_head"};
  CHECK(refused("{}", tables, "h.wte"));
  CHECK_FALSE(refused("{}", tables, "h.wpe"));
  CHECK_FALSE(refused("{}", with_head, "h.wte"));
  CHECK(refused(R"({"tie_word_embeddings": true})", with_head, "h.wte"));
  CHECK_FALSE(refused(R"({"tie_word_embeddings": true})", with_head, "h.wpe"));
  CHECK_FALSE(refused(R"({"tie_word_embeddings": false})", tables, "h.wte"));
  CHECK(refused("{}", {"h.table"}, "h.table"));
}

TEST_CASE("an adapter of a head that is not stored is refused as tied") {
  const ScratchFolder folder;
  WriteModel(folder / "model", "{}", {{"embed_tokens.weight", DType::kF32, {4, 6}}});
  const StoredAdapter adapter = WriteAdapter(folder / "adapter", "lm_head", 4, 6);
  const Result<ConvertSummary> done =
      MergeAdapter(Checkpoint::Open(folder / "model").ValueOrThrow(), adapter, folder / "out");
  REQUIRE(done.diagnostics().size() == 1);
  CHECK_THAT(done.diagnostics().front().message, Contains("which is tied to the embedding"));
}

TEST_CASE("factors of stacked experts that do not fit the model are one error for each stack") {
  const ScratchFolder folder;
  const std::string model = SourcePath("tests/parity/qwen3_moe");  // experts of another size
  const StoredAdapter adapter =
      ReadAdapter(kMergedAdapters + "experts_stacked", {}, "default", {.type = "qwen3_moe", .experts = 4})
          .ValueOrThrow();
  const Result<ConvertSummary> done = MergeAdapter(Checkpoint::Open(model).ValueOrThrow(), adapter, folder / "out");
  REQUIRE_FALSE(done.ok());
  CHECK(done.diagnostics().size() == 4);  // two stacks of two layers
}

}  // namespace
}  // namespace moonshard::test
