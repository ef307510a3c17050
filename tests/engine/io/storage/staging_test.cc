// Files and directories that are complete or absent: a process that is killed, a full disk and a power cut at every call
// of the writers of single files, and what they do with links, pipes and permissions.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>

#include "engine/io/safetensors/writer.h"
#include "engine/io/storage/staging.h"
#include "tests/engine/io/checkpoint/faulty_storage.h"

namespace moonshard::test {
namespace {

using StorageFault = FaultyStorage::Fault;

TEST_CASE("two processes do not write one directory") {
  const ScratchFolder scratch;
  const std::unique_ptr<Storage> storage = PosixStorage();
  StagingOptions options;
  options.storage = storage.get();
  options.work = "the same";
  const Result<StagingDirectory> first = StagingDirectory::Open(scratch / "out", options);
  REQUIRE(first.ok());
  const Result<StagingDirectory> second = StagingDirectory::Open(scratch / "out", options);
  REQUIRE_FALSE(second.ok());
  CHECK_THAT(second.diagnostics().front().message, Catch::Contains("another process is writing it"));
}

// Every writer of a single file: ReplaceFile, a stream, and a safetensors file.
struct FileWriter {
  const char* name;
  std::function<Failure(Storage& storage, const std::string& path)> write;
};

const std::vector<FileWriter>& FileWriters() {
  static const std::vector<FileWriter> writers = {
      {"ReplaceFile", [](Storage& storage, const std::string& path) { return ReplaceFile(storage, path, "step 2\n"); }},
      {"StagedFile",
       [](Storage& storage, const std::string& path) -> Failure {
         Result<StagedFile> file = StagedFile::Create(storage, path);
         if (!file.ok()) return file.diagnostics().front();
         for (const std::string part : {"one ", "two ", "three"}) {
           if (Failure failed = file.value().Append(part.data(), part.size())) return failed;
         }
         return file.value().Commit();
       }},
      {"SafetensorsWriter",
       [](Storage& storage, const std::string& path) {
         const std::string data(3 << 20, 'x');
         return WriteSafetensors(
             path, {{{"b", DType::kU8, {3 << 20}}, data.data()}, {{"a", DType::kF32, {2}}, data.data()}}, {}, &storage);
       }},
  };
  return writers;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

TEST_CASE("a file that is replaced is the old one or the new one, wherever the process or the power stops") {
  for (const FileWriter& writer : FileWriters()) {
    for (const bool over_old : {true, false}) {
      const ScratchFolder scratch;
      const std::string path = scratch / "file";
      const std::unique_ptr<Storage> real = PosixStorage();
      REQUIRE_FALSE(writer.write(*real, path));
      const std::string wanted = ReadWholeFile(path);
      int64_t at = 0;
      for (bool done = false; !done; ++at) {
        INFO(writer.name << ", call " << at);
        std::filesystem::remove(path);
        if (over_old) scratch.Write("file", "old");
        FaultyStorage faulty(StorageFault::kCrash, at);
        Random random(static_cast<unsigned>(at));
        try {
          const Failure failed = writer.write(faulty, path);
          REQUIRE_FALSE(failed);
          done = true;
        } catch (const Crash&) {
        }
        faulty.LosePower(random);
        const bool exists = std::filesystem::exists(path);
        const std::string found = exists ? ReadWholeFile(path) : "";
        if (done) CHECK(found == wanted);
        CHECK((found == wanted || (over_old ? found == "old" : !exists)));
      }
      CHECK(at > 4);
    }
  }
}

TEST_CASE("a disk that is full is an error that names the file, and leaves the old one alone") {
  for (const FileWriter& writer : FileWriters()) {
    for (int64_t at = 0;; ++at) {
      INFO(writer.name << ", call " << at);
      const ScratchFolder scratch;
      const std::string path = scratch.Write("file", "old");
      FaultyStorage faulty(StorageFault::kError, at);
      const Failure failed = writer.write(faulty, path);
      if (!failed) break;
      CHECK(failed->finding == Finding::kWriteFailed);
      CHECK_THAT(failed->message, Catch::Contains("No space left on device"));
      CHECK_THAT(failed->message, !Catch::Contains(".tmp-"));
      const std::string found = ReadWholeFile(path);
      if (found != "old") CHECK(NamesIn(scratch / "") == std::vector<std::string>{"file"});
      // The call that fails last is the sync of the directory: the new file is in place.
      CHECK((found == "old" || faulty.calls() == at + 1));
    }
  }
}

TEST_CASE("what is no file of its own is written to, not replaced") {
  const ScratchFolder scratch;
  scratch.Write("target", "old");
  std::filesystem::create_symlink("target", scratch / "link");
  REQUIRE_FALSE(WriteText(scratch / "link", "new"));
  CHECK(std::filesystem::is_symlink(scratch / "link"));
  CHECK(ReadWholeFile(scratch / "target") == "new");

  REQUIRE_FALSE(WriteText("/dev/null", "new"));
  CHECK(std::filesystem::is_character_file("/dev/null"));

  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  const int reader = ::open((scratch / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  REQUIRE_FALSE(WriteText(scratch / "pipe", "through the pipe"));
  char got[64] = {};
  CHECK(::read(reader, got, sizeof(got)) == 16);
  ::close(reader);
  CHECK(std::string(got) == "through the pipe");
  CHECK(std::filesystem::is_fifo(scratch / "pipe"));
}

TEST_CASE("a file that is replaced keeps its permissions") {
  using std::filesystem::perms;
  const ScratchFolder scratch;
  const std::string path = scratch.Write("file", "old");
  const perms mode = perms::owner_all | perms::group_read | perms::group_write;
  std::filesystem::permissions(path, mode);
  REQUIRE_FALSE(WriteText(path, "new"));
  CHECK(std::filesystem::status(path).permissions() == mode);
  CHECK(ReadWholeFile(path) == "new");
}

}  // namespace
}  // namespace moonshard::test
