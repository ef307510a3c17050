#include "engine/core/base/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "engine/core/base/check.h"

namespace moonshard {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

constexpr std::array kLimits = {
    SmallFileLimit{SmallFile::kConfig, "a config.json", 8 * kMiB},
    SmallFileLimit{SmallFile::kIndex, "an index of safetensors files", 256 * kMiB},
    SmallFileLimit{SmallFile::kManifest, "the manifest of a sharded checkpoint", 1024 * kMiB},
    SmallFileLimit{SmallFile::kProgramIndex, "the index of a directory of exported programs", 8 * kMiB},
    SmallFileLimit{SmallFile::kProgramEntry, "a JSON entry of an exported program", 1024 * kMiB},
    SmallFileLimit{SmallFile::kNote, "the record of a rank about a saved step", 256 * kMiB},
    SmallFileLimit{SmallFile::kRandomStates, "a file of random states", 1024 * kMiB},
    SmallFileLimit{SmallFile::kStoredHeader, "the header of a safetensors file", 128 * kMiB},
    SmallFileLimit{SmallFile::kKeptFile, "a file copied from a model directory", 1024 * kMiB},
    SmallFileLimit{SmallFile::kJournal, "the journal of a staging directory", 1024 * kMiB},
    SmallFileLimit{SmallFile::kHistory, "the history of the REPL", 16 * kMiB},
    SmallFileLimit{SmallFile::kJson, "a JSON file", 64 * kMiB},
};

Diagnostic Unreadable(const std::string& path, Finding finding, const std::string& why) {
  Diagnostic d = MakeDiagnostic(finding, "cannot read '" + path + "': " + why);
  d.path = path;
  return d;
}

Diagnostic Failed(const std::string& path) {
  const bool missing = errno == ENOENT || errno == ENOTDIR;
  return Unreadable(path, missing ? Finding::kFileNotFound : Finding::kFileUnreadable, std::strerror(errno));
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~Descriptor() {
    if (file_ >= 0) ::close(file_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

}  // namespace

std::span<const SmallFileLimit> SmallFileLimits() { return kLimits; }

const SmallFileLimit& LimitOf(SmallFile kind) {
  const auto* const found = std::ranges::find(kLimits, kind, &SmallFileLimit::kind);
  Check(found != kLimits.end(), "a kind of small file without a limit");
  return *found;
}

Diagnostics CheckFileSize(const std::string& path, SmallFile kind, uint64_t bytes) {
  const SmallFileLimit& limit = LimitOf(kind);
  if (bytes <= limit.most_bytes) return {};
  Diagnostic d =
      Unreadable(path, Finding::kFileUnreadable, "the file is larger than the limit for " + std::string(limit.name));
  d.declared = std::to_string(bytes) + " bytes";
  d.required = "at most " + std::to_string(limit.most_bytes) + " bytes";
  return {std::move(d)};
}

// A file of /proc has no size and others may grow while they are read, so the limit holds for what is read too.
Result<std::string> ReadSmallFile(const std::string& path, SmallFile kind) {
  const Descriptor file(path);
  if (file.get() < 0) return Failed(path);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return Failed(path);
  if (S_ISDIR(status.st_mode)) return Unreadable(path, Finding::kFileUnreadable, std::strerror(EISDIR));
  if (!S_ISREG(status.st_mode)) return Unreadable(path, Finding::kFileUnreadable, "it is not a regular file");
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (Diagnostics found = CheckFileSize(path, kind, bytes); !found.empty()) return found;
  std::string text;
  text.reserve(bytes + 1);
  std::array<char, 1 << 16> buffer = {};
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(path);
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(count));
    if (Diagnostics found = CheckFileSize(path, kind, text.size()); !found.empty()) return found;
  }
}

Result<JsonValue> ReadJsonFile(const std::string& path, SmallFile kind, JsonDialect dialect) {
  const Result<std::string> text = ReadSmallFile(path, kind);
  return text.ok() ? ParseJson(text.value(), path, dialect) : Result<JsonValue>(text.diagnostics());
}

Result<JsonValue> ReadJsonFile(const std::string& path, JsonDialect dialect) {
  return ReadJsonFile(path, SmallFile::kJson, dialect);
}

}  // namespace moonshard
