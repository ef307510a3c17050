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

constexpr uint64_t kWriteBackBytes = uint64_t{8} << 20;

Diagnostic Failed(const std::string& path, int error) {
  Diagnostic d =
      MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path + "': " + std::string(std::strerror(error)));
  d.path = path;
  return d;
}

std::filesystem::path Real(const std::string& path) {
  std::error_code ignored;
  std::filesystem::path real = std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
  return real.has_filename() ? real : real.parent_path();
}

bool IsIn(const std::filesystem::path& inner, const std::filesystem::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

class PosixFile : public WritableFile {
 public:
  PosixFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {
    struct stat status = {};
    is_regular_ = ::fstat(descriptor, &status) != 0 || S_ISREG(status.st_mode);
  }
  ~PosixFile() override { ::close(descriptor_); }

  Failure Write(uint64_t offset, const void* data, uint64_t bytes) override {
    const char* next = static_cast<const char*>(data);
    uint64_t at = offset;
    Check(is_regular_ || offset == streamed_, "bytes must be written to a pipe in order");
    const Pace::Clock::time_point begin = Pace::Clock::now();
    for (uint64_t left = bytes; left > 0;) {
      const uint64_t most = std::min(left, kMostPerSystemCall);
      const ssize_t count =
          is_regular_ ? ::pwrite(descriptor_, next, most, static_cast<off_t>(at)) : ::write(descriptor_, next, most);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed(path_, errno);
      next += count;
      at += static_cast<uint64_t>(count);
      left -= static_cast<uint64_t>(count);
    }
    if (!is_regular_) {
      streamed_ = at;
      return std::nullopt;
    }
    pace_.Add(bytes, begin);
    StartWriteBack(offset, bytes);
    return std::nullopt;
  }

  Failure Truncate(uint64_t bytes) override {
    if (is_regular_ && ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) return Failed(path_, errno);
    return std::nullopt;
  }

  Failure Sync() override {
    if (is_regular_ && ::fsync(descriptor_) != 0) return Failed(path_, errno);
    return std::nullopt;
  }

 private:
  struct Stretch {
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  // Requests the write-back of each stretch of kWriteBackBytes as soon as it is full, so that the disk works while
  // the next one is computed and Sync finds little left to do. Where the page cache is slower than the disk (pace.h),
  // waits for the stretch before and gives its pages back. Waiting for the stretch just written would stop this thread
  // for the disk; the one before is nearly always there already.
  void StartWriteBack(uint64_t offset, uint64_t bytes) {
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
  bool is_regular_ = true;
  uint64_t streamed_ = 0;  // bytes written to what is not a regular file
  Pace pace_;
  Stretch now_;
  Stretch before_;
};

class Posix : public Storage {
 public:
  Result<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path) override {
    int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor < 0 && errno == ELOOP) {
      descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      struct stat status = {};
      if (descriptor >= 0 && (::fstat(descriptor, &status) != 0 || S_ISREG(status.st_mode))) {
        ::close(descriptor);
        descriptor = -1;
        errno = ELOOP;
      }
    }
    if (descriptor < 0) return Failed(path, errno);
    return Result<std::unique_ptr<WritableFile>>(std::make_unique<PosixFile>(descriptor, path));
  }

  Result<std::unique_ptr<WritableFile>> CreateForWriting(const std::string& path,
                                                         std::optional<uint32_t> mode) override {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode ? 0600 : 0666);
    if (descriptor < 0) return Failed(path, errno);
    auto file = std::make_unique<PosixFile>(descriptor, path);
    // A file system without permissions refuses it, and a file that its owner alone reads is better than none.
    if (mode && ::fchmod(descriptor, *mode) != 0 && errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) {
      const int error = errno;
      (void)::unlink(path.c_str());
      return Failed(path, error);
    }
    return Result<std::unique_ptr<WritableFile>>(std::move(file));
  }

  Failure MakeDirectory(const std::string& path) override {
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

  // One step of the file system, without a moment at which neither directory is at the path. Not every file system has
  // it.
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

  Failure SyncDirectory(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return Failed(path, errno);
    const int error = ::fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    // Some file systems cannot sync a directory, and answer EINVAL.
    if (error != 0 && error != EINVAL) return Failed(path, error);
    return std::nullopt;
  }
};

}  // namespace

std::unique_ptr<Storage> PosixStorage() { return std::make_unique<Posix>(); }

std::string DirectoryOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// A source within its output (or the reverse) would be read while it is written, or be replaced by its own conversion.
// Links are resolved first: two different paths may be one directory.
Failure RefuseNested(const std::string& from, const std::string& to) {
  const std::filesystem::path a = Real(from);
  const std::filesystem::path b = Real(to);
  if (!IsIn(a, b) && !IsIn(b, a)) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "'" + to + "' cannot be written from '" + from +
                                                            "': the two directories are the same or nested");
  d.path = to;
  d.required = "two directories, neither inside the other";
  return d;
}

}  // namespace moonshard
