// Lines of a session may contain paths and names of models that are not public, so the file is only for its owner.
// Several sessions may use it at once: each line is appended by one write, and shortening writes a new file and renames
// it, so another session never reads half a file. A line that another session appends between the read and the rename
// is lost, which is acceptable for a history. Errors are ignored: a session works without a history.
#include "dsl/program/repl/history_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostLines = 1000;
constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;

// A file that only its owner reads, also where it was there before with another mode.
void Append(const std::string& path, const std::string& text, int flags) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, kOwnerOnly);
  if (file < 0) return;
  const bool private_now = fchmod(file, kOwnerOnly) == 0;
  if (private_now) [[maybe_unused]]
    const ssize_t written =
        write(file, text.data(), text.size());  // one call, so that lines of two sessions do not mix
  close(file);
}

}  // namespace

std::string HistoryFile::DefaultPath() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/moonshard/history";
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : std::string(home) + "/.local/state/moonshard/history";
}

std::vector<std::string> HistoryFile::Load() {
  std::vector<std::string> lines;
  if (path_.empty()) return lines;
  std::error_code error;
  const fs::path folder = fs::path(path_).parent_path();
  if (!folder.empty() && fs::create_directories(folder, error)) fs::permissions(folder, fs::perms::owner_all, error);
  std::ifstream stream(path_);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (lines.size() <= kMostLines) return lines;
  const bool cut = lines.size() > 2 * kMostLines;
  lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kMostLines));
  if (cut) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    const std::string fresh = path_ + "." + std::to_string(getpid());
    Append(fresh, text, O_TRUNC);
    fs::rename(fresh, path_, error);
  }
  return lines;
}

void HistoryFile::Add(const std::string& line) {
  if (path_.empty() || line == last_ || line.find_first_not_of(" \t") == std::string::npos) return;
  last_ = line;
  Append(path_, line + "\n", O_APPEND);
}

}  // namespace moonshard
