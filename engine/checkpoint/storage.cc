#include "engine/checkpoint/storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace moonshard {
namespace {

// Linux writes at most this much in one call.
constexpr uint64_t kMostPerCall = 0x7ffff000;
// The system is asked to begin writing back as soon as this much has come, so that Sync finds little left to do.
constexpr uint64_t kWriteBackBytes = uint64_t{32} << 20;

Diagnostic Failed(const std::string& path, int error) {
  Diagnostic d =
      MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path + "': " + std::string(std::strerror(error)));
  d.path = path;
  return d;
}

class PosixFile : public WritableFile {
 public:
  PosixFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixFile() override { ::close(descriptor_); }

  Failure Write(uint64_t offset, const void* data, uint64_t bytes) override {
    const char* next = static_cast<const char*>(data);
    uint64_t at = offset;
    for (uint64_t left = bytes; left > 0;) {
      const ssize_t count = ::pwrite(descriptor_, next, std::min(left, kMostPerCall), static_cast<off_t>(at));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed(path_, errno);
      next += count;
      at += static_cast<uint64_t>(count);
      left -= static_cast<uint64_t>(count);
    }
    if (written_ == 0 || offset != end_) begin_ = offset;
    end_ = offset + bytes;
    written_ = end_ - begin_;
    if (written_ >= kWriteBackBytes) {
      // Advice only: Sync is what counts.
      (void)::sync_file_range(descriptor_, static_cast<off_t>(begin_), static_cast<off_t>(written_),
                              SYNC_FILE_RANGE_WRITE);
      written_ = 0;
    }
    return std::nullopt;
  }

  Failure Truncate(uint64_t bytes) override {
    if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) return Failed(path_, errno);
    return std::nullopt;
  }

  Failure Sync() override {
    if (::fsync(descriptor_) != 0) return Failed(path_, errno);
    return std::nullopt;
  }

 private:
  int descriptor_;
  std::string path_;
  uint64_t begin_ = 0;  // what was written since the last call to begin writing back
  uint64_t end_ = 0;
  uint64_t written_ = 0;
};

class Posix : public Storage {
 public:
  Result<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return Failed(path, errno);
    return Result<std::unique_ptr<WritableFile>>(std::make_unique<PosixFile>(descriptor, path));
  }

  Failure MakeFolder(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return std::nullopt;
    const int error = errno;
    std::error_code ignored;
    if (error == EEXIST && std::filesystem::is_directory(path, ignored)) return std::nullopt;
    return Failed(path, error);
  }

  Failure Rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) return Failed(to, errno);
    return std::nullopt;
  }

  Failure Exchange(const std::string& a, const std::string& b) override {
    if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) != 0) return Failed(b, errno);
    return std::nullopt;
  }

  Failure RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return Failed(path, error.value());
    return std::nullopt;
  }

  Failure SyncFolder(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return Failed(path, errno);
    const int error = ::fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    // Some file systems cannot sync a folder and say so.
    if (error != 0 && error != EINVAL) return Failed(path, error);
    return std::nullopt;
  }
};

}  // namespace

std::unique_ptr<Storage> PosixStorage() { return std::make_unique<Posix>(); }

std::string FolderOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

Failure ReplaceFile(Storage& storage, const std::string& path, const std::string& content) {
  const std::string temporary = path + ".new";
  {
    Result<std::unique_ptr<WritableFile>> file = storage.OpenForWriting(temporary);
    if (!file.ok()) return file.diagnostics().front();
    WritableFile& to = *file.value();
    if (Failure failed = to.Truncate(0)) return failed;
    if (Failure failed = to.Write(0, content.data(), content.size())) return failed;
    if (Failure failed = to.Sync()) return failed;
  }
  if (Failure failed = storage.Rename(temporary, path)) return failed;
  return storage.SyncFolder(FolderOf(path));
}

}  // namespace moonshard
