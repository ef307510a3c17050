// Lines of a session may contain paths and names of models that are not public, so the file is only for its owner.
// Several sessions may use it at once: each line is appended by one write, and shortening writes a new file and renames
// it, so another session never reads half a file. A line that another session appends between the read and the rename
// is lost, which is acceptable for a history. Errors are ignored: a session works without a history.
#include "dsl/commands/repl/history_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "engine/core/base/small_file.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostLines = 1000;
constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;

// The history file, locked: no other session adds a line or shortens it meanwhile. Only its owner reads it, also where
// it was there before with another mode.
class LockedHistory {
 public:
  explicit LockedHistory(const std::string& path) {
    // A session that shortened the file put another one in its place: then the lock is on a file without a name.
    for (int attempt = 0; attempt < 10; ++attempt) {
      file_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kOwnerOnly);
      struct stat locked = {};
      struct stat named = {};
      const bool good = file_ >= 0 && fstat(file_, &locked) == 0 && S_ISREG(locked.st_mode) &&
                        fchmod(file_, kOwnerOnly) == 0 && flock(file_, LOCK_EX) == 0 && stat(path.c_str(), &named) == 0;
      if (good && locked.st_ino == named.st_ino && locked.st_dev == named.st_dev) return;
      Close();
      if (!good) return;
    }
  }
  ~LockedHistory() { Close(); }
  LockedHistory(const LockedHistory&) = delete;
  LockedHistory& operator=(const LockedHistory&) = delete;
  bool good() const { return file_ >= 0; }

  // All of the text or none of it: part of a line would spoil the next one.
  void Append(const std::string& text) const {
    const off_t end = lseek(file_, 0, SEEK_END);
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = write(file_, text.data() + done, text.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        [[maybe_unused]] const int cut = ftruncate(file_, end);
        return;
      }
      done += static_cast<size_t>(count);
    }
  }

 private:
  void Close() {
    if (file_ >= 0) close(std::exchange(file_, -1));
  }
  int file_ = -1;
};

std::vector<std::string> LinesOf(const std::string& path) {
  std::vector<std::string> lines;
  const Result<std::string> text = ReadSmallFile(path, SmallFile::kHistory);
  if (!text.ok()) return lines;
  std::istringstream stream(text.value());
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::string HistoryFile::DefaultPath() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/moonshard/history";
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : std::string(home) + "/.local/state/moonshard/history";
}

std::vector<std::string> HistoryFile::Load() {
  if (path_.empty()) return {};
  std::error_code error;
  const fs::path folder = fs::path(path_).parent_path();
  if (!folder.empty() && fs::create_directories(folder, error)) fs::permissions(folder, fs::perms::owner_all, error);
  std::vector<std::string> lines = LinesOf(path_);
  if (lines.size() > 2 * kMostLines) {
    const LockedHistory lock(path_);
    lines = LinesOf(path_);  // with what another session has added since
    if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kMostLines));
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    const std::unique_ptr<Storage> storage = PosixStorage();
    if (lock.good()) (void)ReplaceFile(*storage, path_, text);
  }
  if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kMostLines));
  return lines;
}

void HistoryFile::Add(const std::string& line) {
  if (path_.empty() || line == last_ || line.find_first_not_of(" \t") == std::string::npos) return;
  last_ = line;
  if (const LockedHistory history(path_); history.good()) history.Append(line + "\n");
}

}  // namespace moonshard
