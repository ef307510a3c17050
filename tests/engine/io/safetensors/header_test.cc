// The header reader against the recorded verdicts of the Rust reader, and what it says about what it refuses.
#include "engine/io/safetensors/header.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <limits>

#include "engine/core/base/text.h"
#include "tests/engine/io/safetensors/files.h"
#include "tests/support/paths.h"

using namespace moonshard;

namespace {

std::string FromBase64(const std::string& text) {
  static const std::string kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(kDigits.find(c));
    if ((count += 6) >= 8) out += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return out;
}

Result<Header> Parse(const std::string& bytes, HeaderOptions options = {}) {
  return ParseHeader(bytes, bytes.size(), "m.safetensors", options);
}

std::string ErrorOf(const std::string& bytes, HeaderOptions options = {}) {
  const Result<Header> result = Parse(bytes, options);
  return result.ok() ? "" : ToText(result.diagnostics());
}

}  // namespace

TEST_CASE("every recorded verdict of the Rust reader is ours") {
  std::ifstream file(test::SourcePath("tests/engine/io/safetensors/verdicts.txt"));
  REQUIRE(file.good());
  int accepted = 0;
  int rejected = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> fields = Split(line, '\t');
    REQUIRE(fields.size() == 3);
    const std::string bytes = FromBase64(fields[2]);
    const Result<Header> result = Parse(bytes);
    CAPTURE(fields[1], bytes, ToText(result.diagnostics()));
    CHECK(result.ok() == (fields[0] == "accept"));
    ++(fields[0] == "accept" ? accepted : rejected);
  }
  CHECK(accepted >= 200);
  CHECK(rejected >= 600);
}

TEST_CASE("a good header is read") {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," + Entry("b", "BF16", "[2,3]", 4, 16) + "," +
                             Entry("a", "F32", "[]", 0, 4) + "}  ";
  const std::string bytes = SafetensorsBytes(header, std::string(16, 'x'));
  const Header read = Parse(bytes).ValueOrThrow();
  CHECK(read.data_begin == 8 + header.size());
  CHECK(read.data_bytes == 16);
  CHECK_FALSE(read.header_only);
  CHECK(read.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(read.tensors.size() == 2);
  CHECK(read.tensors[0].name == "a");
  CHECK(read.tensors[0].shape.empty());
  CHECK(read.tensors[1].name == "b");
  CHECK(read.tensors[1].dtype == DType::kBF16);
  CHECK(read.tensors[1].shape == std::vector<int64_t>{2, 3});
  CHECK(read.tensors[1].begin == 4);
  CHECK(read.tensors[1].end == 16);
}

TEST_CASE("a header without its tensors is accepted only where that was asked for") {
  const std::string full = SafetensorsBytes("{" + Entry("a", "F32", "[2]", 0, 8) + "}", std::string(8, 'x'));
  const std::string alone = full.substr(0, full.size() - 8);
  CHECK_FALSE(Parse(alone).ok());
  CHECK_THAT(ErrorOf(alone), Catch::Contains("the file contains only the header"));
  const Result<Header> result = Parse(alone, {.allow_header_only = true});
  REQUIRE(result.ok());
  CHECK(result.value().header_only);
  CHECK(result.value().data_bytes == 8);
  // Any other missing byte is an error always, and so is one too many.
  for (size_t cut = 1; cut < 8; ++cut) {
    CHECK_FALSE(Parse(full.substr(0, full.size() - cut), {.allow_header_only = true}).ok());
  }
  CHECK_FALSE(Parse(alone.substr(0, alone.size() - 1), {.allow_header_only = true}).ok());
  CHECK_FALSE(Parse(full + "y", {.allow_header_only = true}).ok());
  CHECK(Parse(full, {.allow_header_only = true}).ok());
  CHECK_FALSE(Parse(full, {.allow_header_only = true}).value().header_only);
}

TEST_CASE("errors name the file, the tensor, what is declared and what is needed") {
  struct Case {
    std::string header;
    std::string data;
    std::vector<std::string> parts;
  };
  const std::string a = Entry("a", "F32", "[1]", 0, 4);
  std::string deep = "m";
  for (int i = 1; i <= 256; ++i) deep += ".m";
  const std::vector<Case> cases = {
      {"{" + a + "," + Entry("b", "F32", "[1]", 8, 12) + "}",
       std::string(12, 0),
       {"m.safetensors: error[MS0403]: tensor 'b' leaves a gap before it", "at: b", "declared: data_offsets [8, 12]",
        "required: begin at 4"}},
      {"{" + a + "," + Entry("b", "F32", "[1]", 2, 6) + "}",
       std::string(6, 0),
       {"tensor 'b' overlaps the tensor before it", "required: begin at 4"}},
      {"{" + Entry("a", "F32", "[1]", 4, 0) + "}", "", {"tensor 'a' ends before it begins", "data_offsets [4, 0]"}},
      {"{" + Entry("a", "F32", "[2, 3]", 0, 4) + "}",
       std::string(4, 0),
       {"tensor 'a' has a byte range whose size does not match its shape", "required: 24 bytes for F32 [2, 3]"}},
      {"{" + Entry("a", "F4", "[3]", 0, 1) + "}", "x", {"tensor 'a' does not fill its last byte", "F4 [3]"}},
      {"{" + Entry("a", "F32", "[4294967296, 4294967296]", 0, 1) + "}", "x", {"size overflows"}},
      {"{" + Entry("a", "F23", "[1]", 0, 4) + "}",
       std::string(4, 0),
       {"tensor 'a' has the unknown dtype 'F23'", "declared: F23", "did you mean 'F32'?"}},
      {"{\"a\":{\"shape\":[-1]}}", "", {"'a': shape is not valid", "'a' has no dtype", "'a' has no data_offsets"}},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", "", {"data_offsets has 1 numbers"}},
      {"{\"__metadata__\":{\"a\":1}}", "", {"'__metadata__' is not an object of strings"}},
      {"{" + Entry(deep, "F32", "[1]", 0, 4) + "}",
       std::string(4, 0),
       {"a name of too many components", "at most 256"}},
      {"[]", "", {"the header is not a JSON object"}},
      {"{\"a\":}", "", {"the header cannot be read", "byte 5 of 6"}},
      {"{" + a + "}", "xy", {"the file is shorter than its header declares"}},
      {"{" + a + "}", "xyzwv", {"the file continues after its last tensor"}},
      {"{\"a\\u001b[31m\":null}", "", {"tensor 'a\\u001b[31m' is not described by an object"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.header);
    const std::string text = ErrorOf(SafetensorsBytes(c.header, c.data));
    for (const std::string& part : c.parts) CHECK_THAT(text, Catch::Contains(part));
  }
  CHECK_THAT(ErrorOf("abc"), Catch::Contains("3 bytes is too short"));
  CHECK_THAT(ErrorOf("{\"a\": 12345678}"), Catch::Contains("this is not a safetensors file"));
}

TEST_CASE("all faults are told at once, but not without end") {
  std::string header = "{" + Entry("a", "F31", "[1]", 0, 4) + "," + Entry("b", "F30", "[1]", 4, 8) + "}";
  CHECK(Parse(SafetensorsBytes(header)).diagnostics().size() == 2);
  header = "{";
  for (int i = 0; i < 5000; ++i) header += (i ? "," : "") + Entry("t" + std::to_string(i), "F32", "[1]", 1, 2);
  const size_t count = Parse(SafetensorsBytes(header + "}")).diagnostics().size();
  CHECK(count > 5);
  CHECK(count < 30);
}

TEST_CASE("a duplicated name is a warning, and its last entry counts") {
  const std::string bytes = SafetensorsBytes(
      "{" + Entry("a", "F32", "[1]", 0, 4) + "," + Entry("a", "I32", "[1,1]", 0, 4) + "}", std::string(4, 0));
  const Result<Header> result = Parse(bytes);
  REQUIRE(result.ok());
  REQUIRE(result.value().tensors.size() == 1);
  CHECK(result.value().tensors[0].dtype == DType::kI32);
  REQUIRE(result.diagnostics().size() == 1);
  CHECK(result.diagnostics()[0].severity == Severity::kWarning);
}

TEST_CASE("a size beyond int64 is the largest one") {
  const Result<Header> result = Parse(SafetensorsBytes("{" + Entry("a", "F32", "[0,9223372036854775808]", 0, 0) + "}"));
  REQUIRE(result.ok());
  CHECK(result.value().tensors[0].shape[1] == std::numeric_limits<int64_t>::max());
}

TEST_CASE("files that are not there or are no files") {
  TestFolder folder;
  CHECK(ReadHeader(folder / "none").diagnostics().at(0).finding == Finding::kFileNotFound);
  CHECK(ReadHeader(folder.path()).diagnostics().at(0).finding == Finding::kFileUnreadable);
  folder.Write("a.safetensors", SafetensorsBytes("{" + Entry("a", "U8", "[3]", 0, 3) + "}", "abc"));
  CHECK(ReadHeader(folder / "a.safetensors").ok());
  folder.Write("empty.safetensors", "");
  CHECK(ReadHeader(folder / "empty.safetensors").diagnostics().at(0).finding == Finding::kBadSafetensors);
}
