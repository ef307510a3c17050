// Files that are read in full: every kind by the ends of its limit, without reading or holding what is above it.
#include "engine/core/base/small_file.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <string>

#include "tests/support/process.h"

namespace moonshard {
namespace {

using Catch::Contains;
using test::ScratchFolder;

TEST_CASE("a file above the limit of its kind is refused by its size, with both numbers") {
  const ScratchFolder folder;
  const std::string path = folder.Write("file", "");
  for (const SmallFileLimit& limit : SmallFileLimits()) {
    INFO(limit.name);
    CHECK(&LimitOf(limit.kind) == &limit);
    CHECK(CheckFileSize(path, limit.kind, limit.most_bytes).empty());
    for (const uint64_t bytes : {limit.most_bytes + 1, uint64_t{1} << 40}) {
      std::filesystem::resize_file(path, bytes);  // sparse
      const Result<std::string> read = ReadSmallFile(path, limit.kind);
      REQUIRE_FALSE(read.ok());
      const Diagnostic& d = read.diagnostics().front();
      CHECK(d.finding == Finding::kFileUnreadable);
      CHECK(d.message == "cannot read '" + path + "': the file is larger than the limit for " + limit.name);
      CHECK(d.declared == std::to_string(bytes) + " bytes");
      CHECK(d.required == "at most " + std::to_string(limit.most_bytes) + " bytes");
    }
  }
}

TEST_CASE("a small file is its bytes; what is no regular file is refused") {
  const ScratchFolder folder;
  const std::string text = std::string("a\0b", 3) + std::string(200'000, 'x');
  CHECK(ReadSmallFile(folder.Write("file", text), SmallFile::kJson).ValueOrThrow() == text);
  CHECK(ReadSmallFile("/proc/self/stat", SmallFile::kJson).ok());  // which has no size
  const auto refused = [](const std::string& path) {
    const Result<std::string> read = ReadSmallFile(path, SmallFile::kJson);
    REQUIRE_FALSE(read.ok());
    return read.diagnostics().front();
  };
  CHECK(refused(folder / "none").finding == Finding::kFileNotFound);
  CHECK_THAT(refused(folder.path()).message, Contains("Is a directory"));
  CHECK_THAT(refused("/dev/zero").message, Contains("it is not a regular file"));
  CHECK(ReadJsonFile(folder.Write("json", "{\"a\": 1}"), SmallFile::kConfig).ValueOrThrow().Find("a")->AsInt() == 1);
}

}  // namespace
}  // namespace moonshard
