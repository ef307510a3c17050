#include "engine/io/storage/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/io/storage/storage.h"

namespace moonshard {
namespace {

Diagnostic Unreadable(const std::string& path, Finding finding, const std::string& why) {
  Diagnostic d = MakeDiagnostic(finding, "cannot read '" + path + "': " + why);
  d.path = path;
  return d;
}

}  // namespace

// The checks are on the descriptor, not on the path, which could name another file a moment later. O_NONBLOCK, because
// opening a pipe without a writer would wait forever before its kind is known.
Result<File> File::Open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    return Unreadable(path, missing ? Finding::kFileNotFound : Finding::kFileUnreadable, std::strerror(errno));
  }
  File file(descriptor, 0, path);
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return Unreadable(path, Finding::kFileUnreadable, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return Unreadable(path, Finding::kFileUnreadable, "it is not a regular file");
  file.bytes_ = static_cast<uint64_t>(status.st_size);
  return file;
}

File::File(int descriptor, uint64_t bytes, std::string path)
    : descriptor_(descriptor), bytes_(bytes), path_(std::move(path)) {}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// pread has its own offset, so several readers may share a File. A call may return less than requested, and a file may
// have become shorter since it was opened: that is an error with both lengths, not zeros.
std::optional<Diagnostic> File::Read(uint64_t offset, void* to, uint64_t bytes) const {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor_, next, std::min(bytes, kMostPerSystemCall), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Unreadable(path_, Finding::kFileUnreadable, std::strerror(errno));
    if (count == 0) {
      return Unreadable(path_, Finding::kFileUnreadable,
                        "it ends at byte " + std::to_string(offset) + ", but had " + std::to_string(bytes_) +
                            " bytes when it was opened");
    }
    next += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<uint64_t>(count);
  }
  return std::nullopt;
}

}  // namespace moonshard
