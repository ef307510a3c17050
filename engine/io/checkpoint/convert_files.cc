#include "engine/io/checkpoint/convert_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

namespace moonshard {
namespace {

// Far below what a process may have open (1024 by default).
constexpr size_t kMostOpen = 256;

// How far ahead of the reading a slow file is fetched.
constexpr uint64_t kAheadBytes = uint64_t{16} << 20;

// Makes room for one more, by closing all: a conversion passes its files in rounds, so the file that was used least
// recently is the one that is needed next, and an exact order of use would gain nothing.
template <class Files>
void CloseAllWhenFull(Files& files, size_t& open) {
  if (open < kMostOpen) return;
  for (auto& file : files) file.reset();
  open = 0;
}

}  // namespace

std::string StampOf(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return "?";
  return std::to_string(status.st_size) + " " + std::to_string(status.st_ino) + " " +
         std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec);
}

Result<WritableFile*> OutputFiles::At(size_t file) {
  if (!files_[file]) {
    CloseAllWhenFull(files_, open_);
    Result<std::unique_ptr<WritableFile>> opened = storage_.OpenForWriting(paths_[file]);
    if (!opened.ok()) return opened.diagnostics();
    files_[file] = std::move(opened).value();
    ++open_;
  }
  return files_[file].get();
}

Failure OutputFiles::Write(size_t file, uint64_t offset, const void* data, uint64_t bytes) {
  const Result<WritableFile*> to = At(file);
  return to.ok() ? to.value()->Write(offset, data, bytes) : to.diagnostics().front();
}

Failure OutputFiles::Truncate(size_t file, uint64_t bytes) {
  const Result<WritableFile*> to = At(file);
  return to.ok() ? to.value()->Truncate(bytes) : to.diagnostics().front();
}

Result<const File*> InputFiles::At(size_t file) {
  if (!files_[file]) {
    CloseAllWhenFull(files_, open_);
    Result<File> opened = File::Open(paths_[file]);
    if (!opened.ok()) return opened.diagnostics();
    files_[file].emplace(std::move(opened).value());
    ++open_;
  }
  return &*files_[file];
}

Failure InputFiles::Read(size_t file, uint64_t offset, void* to, uint64_t bytes) {
  const Result<const File*> opened = At(file);
  if (!opened.ok()) return opened.diagnostics().front();
  const Pace::Clock::time_point begin = Pace::Clock::now();
  if (Failure failed = opened.value()->Read(offset, to, bytes)) return failed;
  pace_.Add(bytes, begin);
  if (pace_.slow()) {
    // So slow, it was not in the page cache: no page that another process put there is given up. Advice only.
    const int descriptor = opened.value()->descriptor();
    const auto end = static_cast<off_t>(offset + bytes);
    (void)::posix_fadvise(descriptor, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
    (void)::posix_fadvise(descriptor, end, static_cast<off_t>(kAheadBytes), POSIX_FADV_WILLNEED);
  }
  return std::nullopt;
}

}  // namespace moonshard
