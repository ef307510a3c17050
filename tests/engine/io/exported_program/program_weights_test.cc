// The weights of an archive as a checkpoint, and the offsets of a zip file's entries.
#include "engine/io/exported_program/program_weights.h"

#include <catch2/catch.hpp>

#include <string>
#include <utility>
#include <vector>

#include "engine/io/exported_program/program_archive.h"
#include "engine/io/exported_program/zip_offsets.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::string kOutputs = SourcePath("tests/parity/own_modules/outputs/program.pt2");

std::string LittleEndian(uint64_t value, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

// A zip file with one stored entry whose sizes and offset are only in ZIP64 records.
std::string LargeZip(const std::string& name, const std::string& content) {
  const std::string in64 = LittleEndian(0xffffffff, 4);
  const std::string sizes = LittleEndian(content.size(), 8) + LittleEndian(content.size(), 8);
  const std::string local = LittleEndian(0x04034b50, 4) + LittleEndian(45, 2) + std::string(12, '\0') + in64 + in64 +
                            LittleEndian(name.size(), 2) + LittleEndian(20, 2) + name + LittleEndian(1, 2) +
                            LittleEndian(16, 2) + sizes;
  const std::string directory = LittleEndian(0x02014b50, 4) + std::string(16, '\0') + in64 + in64 +
                                LittleEndian(name.size(), 2) + LittleEndian(28, 2) + std::string(10, '\0') + in64 +
                                name + LittleEndian(1, 2) + LittleEndian(24, 2) + sizes + LittleEndian(0, 8);
  const uint64_t begin = local.size() + content.size();
  const std::string end64 = LittleEndian(0x06064b50, 4) + LittleEndian(44, 8) + std::string(12, '\0') +
                            LittleEndian(1, 8) + LittleEndian(1, 8) + LittleEndian(directory.size(), 8) +
                            LittleEndian(begin, 8);
  const std::string locator =
      LittleEndian(0x07064b50, 4) + LittleEndian(0, 4) + LittleEndian(begin + directory.size(), 8) + LittleEndian(1, 4);
  const std::string end = LittleEndian(0x06054b50, 4) + std::string(4, '\0') + LittleEndian(0xffff, 2) +
                          LittleEndian(0xffff, 2) + in64 + in64 + LittleEndian(0, 2);
  return local + content + directory + end64 + locator + end;
}

TEST_CASE("the offsets of entries are where their bytes are") {
  for (const std::string& path : {kOutputs, SourcePath("tests/parity/programs/llama/with_weights.pt2")}) {
    const ProgramArchive archive = ProgramArchive::Open(path).ValueOrThrow();
    const auto offsets = ZipOffsets(path).ValueOrThrow();
    const std::string bytes = ReadWholeFile(path);
    CHECK(offsets.size() == archive.entries().size());
    for (const std::string& entry : archive.entries()) {
      INFO(path << ": " << entry);
      REQUIRE(offsets.contains(entry));
      CHECK(bytes.substr(offsets.at(entry), *archive.BytesOf(entry)) == archive.Read(entry).value());
    }
  }
  const ScratchFolder scratch;
  const std::string large = LargeZip("program/data/weights/weight_0", "the bytes");
  const auto offsets = ZipOffsets(scratch.Write("large.pt2", large)).ValueOrThrow();
  REQUIRE(offsets.contains("data/weights/weight_0"));
  CHECK(large.substr(offsets.at("data/weights/weight_0"), 9) == "the bytes");
}

TEST_CASE("a damaged zip file has no offsets, and no read beyond it") {
  const ScratchFolder scratch;
  const std::string good = ReadWholeFile(kOutputs);
  const std::string large = LargeZip("program/x", "the bytes");
  std::vector<std::string> damaged = {"",
                                      "text",
                                      good.substr(0, good.size() - 1),
                                      good.substr(0, good.size() / 2),
                                      large.substr(1),
                                      large.substr(0, large.size() - 30)};
  // A record of the directory, the start of the directory, its length, a header.
  for (const std::string signature : {"PK\1\2", "PK\3\4"}) {
    std::string text = good;
    text[text.rfind(signature)] = 'X';
    damaged.push_back(std::move(text));
  }
  const size_t end = good.rfind("PK\5\6");
  for (const size_t field : {end + 12, end + 16, end + 19}) {
    std::string text = good;
    text[field] = static_cast<char>(text[field] ^ 0x5a);
    damaged.push_back(std::move(text));
  }
  for (const std::string& text : damaged) {
    INFO(text.size());
    const auto offsets = ZipOffsets(scratch.Write("x.pt2", text));
    REQUIRE_FALSE(offsets.ok());
    CHECK(offsets.diagnostics().front().finding == Finding::kBadProgram);
  }
  // Any one byte of the records at the end may be another one.
  for (size_t at = good.rfind("PK\1\2"); at < good.size(); ++at) {
    std::string text = good;
    text[at] = '\xff';
    const auto offsets = ZipOffsetsOfBytes(text, "x.pt2");
    if (!offsets.ok()) continue;
    for (const auto& [entry, offset] : offsets.value()) CHECK(offset <= text.size());
  }
  CHECK(ZipOffsets(scratch / "none.pt2").diagnostics().front().finding == Finding::kFileNotFound);
}

TEST_CASE("the weights in an archive are a checkpoint of the model's names") {
  const ExportedProgram program = ReadProgramPath(kOutputs).ValueOrThrow();
  const Checkpoint weights = WeightsOf(program).ValueOrThrow();
  std::vector<std::string> names;
  for (const StoredTensor& tensor : weights.tensors()) names.push_back(tensor.name);
  // lm_head.weight is tied to embed.weight; scale is a buffer.
  CHECK(names == std::vector<std::string>{"down.bias", "down.weight", "embed.weight", "norm.bias", "norm.weight",
                                          "scale", "up.bias", "up.weight"});
  CHECK(weights.Find("up.weight")->shape == std::vector<int64_t>{16, 8});
  CHECK(weights.path() == kOutputs);
  const ProgramArchive archive = ProgramArchive::Open(kOutputs).ValueOrThrow();
  const std::string bytes = ReadWholeFile(kOutputs);
  for (const ProgramTensor& tensor : program.tensors) {
    const StoredTensor* stored = weights.Find(tensor.name);
    if (stored == nullptr) continue;
    INFO(tensor.name);
    CHECK(bytes.substr(stored->begin, stored->bytes) == archive.Read(tensor.entry).value());
  }
  // Without weights there are none.
  const std::string without = SourcePath("tests/parity/programs/llama/program.pt2");
  CHECK(WeightsOf(ReadProgramPath(without).ValueOrThrow()).ValueOrThrow().tensors().empty());
}

TEST_CASE("weights that are transposed in the archive are refused") {
  ExportedProgram program = ReadProgramPath(kOutputs).ValueOrThrow();
  for (ProgramTensor& tensor : program.tensors) {
    if (tensor.name == "up.weight") tensor.strides = {1, 16};
  }
  const Result<Checkpoint> refused = WeightsOf(program);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.diagnostics().front().finding == Finding::kNotSupported);
  CHECK_THAT(refused.diagnostics().front().ToText(),
             Contains("'up.weight' are not contiguous") && Contains("--program"));
}

}  // namespace
}  // namespace moonshard::test
