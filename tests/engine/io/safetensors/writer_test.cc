// What is written reads back bit for bit, in the order of the Rust writer, and appears complete or not at all.
#include "engine/io/safetensors/writer.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "tests/engine/io/safetensors/files.h"

using namespace moonshard;

namespace {

size_t FilesIn(const TestFolder& folder) {
  const auto entries = std::filesystem::directory_iterator(folder.path());
  return static_cast<size_t>(std::distance(std::filesystem::begin(entries), std::filesystem::end(entries)));
}

std::string WriterErrorOf(const std::string& path, std::vector<TensorSpec> specs) {
  const Result<SafetensorsWriter> writer = SafetensorsWriter::Create(path, std::move(specs));
  return writer.ok() ? "" : ToText(writer.diagnostics());
}

}  // namespace

TEST_CASE("the bytes of a small file") {
  TestFolder folder;
  const std::string path = folder / "a.safetensors";
  const std::string u8 = "abc";
  const std::string f32 = "12345678";
  const std::string i32 = "ABCD";
  REQUIRE_FALSE(WriteSafetensors(path,
                                 {{{"z", DType::kU8, {3}}, u8.data()},
                                  {{"b", DType::kF32, {2, 1}}, f32.data()},
                                  {{"a", DType::kF32, {0}}, nullptr},
                                  {{"q\"", DType::kI32, {}}, i32.data()}},
                                 {{"k", "v"}}));
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
      R"("b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"q\"":{"dtype":"I32","shape":[],"data_offsets":[8,12]},)"
      R"("z":{"dtype":"U8","shape":[3],"data_offsets":[12,15]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  CHECK(ReadAll(path) == SafetensorsBytes(padded, f32 + i32 + u8));
  CHECK(FilesIn(folder) == 1);
}

TEST_CASE("every dtype passes through in chunks of any size") {
  TestFolder folder;
  std::mt19937 random(5);
  std::vector<TensorSpec> specs;
  for (int d = 0; d <= static_cast<int>(DType::kU64); ++d) {
    specs.push_back({"t" + std::to_string(d), static_cast<DType>(d), {4, static_cast<int64_t>(random() % 3000)}});
  }
  specs.push_back({"large", DType::kBF16, {3, 1000, 1000}});
  for (size_t chunk : {size_t{1000}, size_t{1} << 20, size_t{7} << 20}) {
    const std::string path = folder / ("chunk" + std::to_string(chunk));
    Result<SafetensorsWriter> writer = SafetensorsWriter::Create(path, specs);
    REQUIRE(writer.ok());
    std::string all;
    for (const TensorSpec& spec : writer.value().order()) {
      std::string data(static_cast<size_t>(ShardBytes(spec.dtype, FullShard(spec.shape))), '\0');
      for (char& c : data) c = static_cast<char>(random());
      all += data;
    }
    for (size_t at = 0; at < all.size(); at += chunk) {
      REQUIRE_FALSE(writer.value().Append(all.data() + at, std::min(chunk, all.size() - at)));
    }
    CHECK_FALSE(std::filesystem::exists(path));
    REQUIRE_FALSE(writer.value().Finish());

    const Checkpoint checkpoint = Checkpoint::OpenFile(path).ValueOrThrow();
    REQUIRE(checkpoint.tensors().size() == specs.size());
    ShardReader reader(checkpoint);
    uint64_t at = 0;
    for (const TensorSpec& spec : writer.value().order()) {
      const StoredTensor* tensor = checkpoint.Find(spec.name);
      REQUIRE(tensor);
      CHECK(tensor->dtype == spec.dtype);
      CHECK(tensor->shape == spec.shape);
      CHECK(tensor->begin % 8 == at % 8);
      std::string data(tensor->bytes, '\0');
      REQUIRE_FALSE(reader.ReadFull(*tensor, data.data()));
      CHECK(data == all.substr(at, tensor->bytes));
      at += tensor->bytes;
    }
  }
}

TEST_CASE("an existing file is replaced only by a complete one") {
  TestFolder folder;
  folder.Write("a", "old");
  const std::string data(16, 'x');
  SECTION("left alone") {
    Result<SafetensorsWriter> writer = SafetensorsWriter::Create(folder / "a", {{"t", DType::kU8, {16}}});
    REQUIRE_FALSE(writer.value().Append(data.data(), 8));
  }
  SECTION("too few bytes") {
    Result<SafetensorsWriter> writer = SafetensorsWriter::Create(folder / "a", {{"t", DType::kU8, {16}}});
    REQUIRE_FALSE(writer.value().Append(data.data(), 8));
    const std::optional<Diagnostic> error = writer.value().Finish();
    REQUIRE(error);
    CHECK(error->finding == Finding::kWriteFailed);
    CHECK_THAT(error->message, Catch::Contains("only 8 of the declared 16 bytes"));
  }
  SECTION("too many bytes") {
    Result<SafetensorsWriter> writer = SafetensorsWriter::Create(folder / "a", {{"t", DType::kU8, {16}}});
    REQUIRE_FALSE(writer.value().Append(data.data(), 16));
    const std::optional<Diagnostic> error = writer.value().Append(data.data(), 1);
    REQUIRE(error);
    CHECK_THAT(error->message, Catch::Contains("more than the declared 16 bytes"));
  }
  CHECK(ReadAll(folder / "a") == "old");
  CHECK(FilesIn(folder) == 1);
}

TEST_CASE("what cannot be written is refused by name") {
  TestFolder folder;
  const std::string path = folder / "a";
  CHECK_THAT(WriterErrorOf(path, {{"t", DType::kU8, {1}}, {"t", DType::kF32, {1}}}),
             Catch::Contains("'t' is declared twice"));
  CHECK_THAT(WriterErrorOf(path, {{"__metadata__", DType::kU8, {1}}}), Catch::Contains("'__metadata__'"));
  CHECK_THAT(WriterErrorOf(path, {{"t", DType::kU8, {-1}}}), Catch::Contains("[-1]"));
  CHECK_THAT(WriterErrorOf(path, {{"t", DType::kF4, {3}}}), Catch::Contains("[3]"));
  CHECK_THAT(WriterErrorOf(path, {{"t\xff", DType::kU8, {1}}}), Catch::Contains("not UTF-8"));
  CHECK_THAT(WriterErrorOf(folder / "none/a", {{"t", DType::kU8, {1}}}), Catch::Contains("No such file"));
  CHECK(FilesIn(folder) == 0);
}
