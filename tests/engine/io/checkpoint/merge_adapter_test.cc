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

namespace moonshard::test {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

const std::string kMergedAdapters = SourcePath("tests/parity/adapters/");

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
      const StoredAdapter stored = ReadAdapter(kMergedAdapters + adapter, {}, "default", "mixtral").ValueOrThrow();
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

StoredAdapter WriteAdapter(const std::string& path, const std::string& module, int64_t out, int64_t in) {
  WriteModel(path, "{}",
             {{"base_model.model." + module + ".lora_A.weight", DType::kF32, {2, in}},
              {"base_model.model." + module + ".lora_B.weight", DType::kF32, {out, 2}}});
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
             Contains("which the config ties to the embedding"));
  CHECK_THAT(refused("{}", "lm_head", 6, DType::kI32), Contains("an adapter cannot be added to 'lm_head.weight'"));
}

}  // namespace
}  // namespace moonshard::test
