// Files and directories that are complete or absent: a process that is killed, a full disk and a power cut at every
// call of the writers of single files, and what they do with links, pipes and permissions.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>

#include "engine/core/base/hash.h"
#include "engine/io/safetensors/writer.h"
#include "engine/io/storage/staging.h"
#include "tests/engine/io/checkpoint/faulty_storage.h"
#include "tests/support/golden.h"

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

TEST_CASE("directories without files survive a power failure after Commit") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const ScratchFolder scratch;
    Random random(seed);
    FaultyStorage faulty;
    StagingDirectory staging = StagingDirectory::Open(scratch / "out", {.storage = &faulty}).ValueOrThrow();
    for (const char* name : {"a", "a/b", "a/b/c"}) REQUIRE_FALSE(faulty.MakeDirectory(staging.PathOf(name)));
    REQUIRE_FALSE(WriteFile(faulty, staging.PathOf("file"), "text"));
    REQUIRE_FALSE(staging.Commit({"file"}));
    faulty.LosePower(random);
    CHECK(std::filesystem::is_directory(scratch / "out/a/b/c"));
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

TEST_CASE("a pipe is written to through a link to a name that is none, as /dev/stdout has it") {
  const ScratchFolder scratch;
  std::array<int, 2> ends = {};
  REQUIRE(::pipe(ends.data()) == 0);
  std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(ends[1]), scratch / "link");
  REQUIRE_FALSE(WriteText(scratch / "link", "through the pipe"));
  char got[64] = {};
  CHECK(::read(ends[0], got, sizeof(got)) == 16);
  CHECK(std::string(got) == "through the pipe");
  for (const int end : ends) ::close(end);
}

TEST_CASE("a link that leads nowhere is an error that names it") {
  const ScratchFolder scratch;
  std::filesystem::create_symlink(scratch / "b", scratch / "a");
  std::filesystem::create_symlink(scratch / "a", scratch / "b");
  const Failure failed = WriteText(scratch / "a", "new");
  REQUIRE(failed);
  CHECK_THAT(failed->message, Catch::Contains("'" + scratch / "a" + "'") && Catch::Contains("symbolic link"));
}

// From now on fchmod fails in this process with the error.
bool RefuseChmod(int error) {
  std::array<sock_filter, 4> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fchmod, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program = {filter.size(), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_CASE("a file system without permissions is written to; one that refuses them for another reason is an error") {
  for (const int error : {EPERM, EOPNOTSUPP, EIO}) {
    INFO(error);
    const ScratchFolder scratch;
    const std::string path = scratch.Write("file", "old");
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(20);
      if (!RefuseChmod(error)) _exit(9);
      _exit(WriteText(path, "new") ? 1 : 0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) != 9);
    CHECK(WEXITSTATUS(status) == (error == EIO ? 1 : 0));
    CHECK(ReadWholeFile(path) == (error == EIO ? "old" : "new"));
    CHECK(NamesIn(scratch / "") == std::vector<std::string>{"file"});
  }
}

TEST_CASE("a journal of a directory that is gone is not continued") {
  const ScratchFolder scratch;
  std::filesystem::create_directories(scratch / "out");
  scratch.Write("out/other", "of somebody else");
  std::filesystem::create_directories(scratch / "out.partial");
  const std::string head = HashToText(HashOf(std::string("work"))) + "\n";
  scratch.Write("out.partial/journal", head + R"({"hashes":["0000000000000001"],"part":"a"})" + "\n" +
                                           R"({"moving":"0000000000000001"})" + "\n");
  const std::unique_ptr<Storage> storage = PosixStorage();
  StagingOptions options;
  options.storage = storage.get();
  options.work = "work";
  options.replace = true;
  {
    Result<StagingDirectory> fresh = StagingDirectory::Open(scratch / "out", options);
    REQUIRE(fresh.ok());
    CHECK_FALSE(fresh.value().published());
    CHECK(fresh.value().Recorded("a") == nullptr);
    REQUIRE_FALSE(fresh.value().Record("b", {2}));
  }
  CHECK(ReadWholeFile(scratch / "out.partial/journal").starts_with(head));
  const Result<StagingDirectory> next = StagingDirectory::Open(scratch / "out", options);
  REQUIRE(next.ok());
  CHECK(next.value().Recorded("a") == nullptr);
  CHECK(next.value().Recorded("b") != nullptr);
}

TEST_CASE("links that somebody put where a directory is written lead nowhere") {
  namespace fs = std::filesystem;
  const std::unique_ptr<Storage> storage = PosixStorage();
  const StagingOptions options = {.storage = storage.get(), .work = "the same"};
  const auto begin = [&](const ScratchFolder& scratch) {
    StagingDirectory staging = StagingDirectory::Open(scratch / "out", options).ValueOrThrow();
    REQUIRE_FALSE(WriteFile(*storage, staging.PathOf("part"), "part"));
    REQUIRE_FALSE(staging.Record("part", {1}));
  };
  struct Row {
    const char* link;  // within OUT.partial
    const char* to;    // within the scratch folder
  };
  for (const Row& row : {Row{"new/part", "victim"}, Row{"new/other", "victim"}, Row{"new/folder", "place"},
                         Row{"journal", "victim"}, Row{"new", "place"}}) {
    INFO(row.link);
    const ScratchFolder scratch;
    begin(scratch);
    const std::string victim = scratch.Write("victim", "precious");
    fs::create_directory(scratch / "place");
    const std::string link = scratch / (std::string("out.partial/") + row.link);
    fs::remove_all(link);
    fs::create_symlink(scratch / row.to, link);
    Result<StagingDirectory> staging = StagingDirectory::Open(scratch / "out", options);
    if (staging.ok()) {
      CHECK(staging.value().Recorded("part") == nullptr);  // begun anew
      REQUIRE_FALSE(WriteFile(*storage, staging.value().PathOf("part"), "new part"));
      REQUIRE_FALSE(MakeDirectoriesFor(*storage, staging.value().directory(), "folder/file"));
      REQUIRE_FALSE(WriteFile(*storage, staging.value().PathOf("folder/file"), "file"));
      REQUIRE_FALSE(staging.value().Commit({"part", "folder/file"}));
      CHECK(ReadWholeFile(scratch / "out/part") == "new part");
    }
    CHECK(ReadWholeFile(victim) == "precious");
    CHECK(fs::is_empty(scratch / "place"));
  }
  // A link in place of OUT.partial, and one that appears while the directory is written.
  const ScratchFolder scratch;
  const std::string victim = scratch.Write("victim", "precious");
  fs::create_directory(scratch / "place");
  fs::create_symlink(scratch / "place", scratch / "out.partial");
  CHECK_FALSE(StagingDirectory::Open(scratch / "out", options).ok());
  CHECK(fs::is_empty(scratch / "place"));
  fs::remove(scratch / "out.partial");
  StagingDirectory staging = StagingDirectory::Open(scratch / "out", options).ValueOrThrow();
  fs::create_symlink(victim, staging.PathOf("part"));
  CHECK(WriteFile(*storage, staging.PathOf("part"), "part"));
  CHECK(ReadWholeFile(victim) == "precious");
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
