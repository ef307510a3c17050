#include "engine/io/storage/storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/io/storage/pace.h"

namespace moonshard {
namespace {

// Linux writes at most this much in one call.
constexpr uint64_t kMostPerCall = 0x7ffff000;
// The system is asked to begin writing back as soon as this much has come, so that Sync finds little left to do.
constexpr uint64_t kWriteBackBytes = uint64_t{8} << 20;

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
    const Pace::Clock::time_point begin = Pace::Clock::now();
    for (uint64_t left = bytes; left > 0;) {
      const ssize_t count = ::pwrite(descriptor_, next, std::min(left, kMostPerCall), static_cast<off_t>(at));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed(path_, errno);
      next += count;
      at += static_cast<uint64_t>(count);
      left -= static_cast<uint64_t>(count);
    }
    pace_.Add(bytes, begin);
    Written(offset, bytes);
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
  // A stretch that was written: the system is asked to write it back at once; where pages are dear it is waited for when
  // the next one is full, and they are given back.
  struct Stretch {
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  void Written(uint64_t offset, uint64_t bytes) {
    if (offset != now_.end) now_ = {offset, offset};
    now_.end = offset + bytes;
    if (now_.end - now_.begin < kWriteBackBytes) return;
    // Advice only: Sync is what counts.
    Range(now_, SYNC_FILE_RANGE_WRITE);
    if (pace_.slow()) {
      Range(before_, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
      (void)::posix_fadvise(descriptor_, static_cast<off_t>(before_.begin),
                            static_cast<off_t>(before_.end - before_.begin), POSIX_FADV_DONTNEED);
    }
    before_ = now_;
    now_ = {now_.end, now_.end};
  }

  void Range(const Stretch& stretch, unsigned how) const {
    if (stretch.begin == stretch.end) return;
    (void)::sync_file_range(descriptor_, static_cast<off_t>(stretch.begin),
                            static_cast<off_t>(stretch.end - stretch.begin), how);
  }

  int descriptor_;
  std::string path_;
  Pace pace_;
  Stretch now_;
  Stretch before_;
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
    // Some file systems cannot sync a directory and say so.
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
