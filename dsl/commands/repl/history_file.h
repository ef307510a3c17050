// HistoryFile: the lines of past sessions, one per line, in a file that only its owner can read. Sessions that run at
// the same time append their lines one by one, so that no session overwrites the lines of another.
#pragma once

#include <string>
#include <vector>

namespace moonshard {

class HistoryFile {
 public:
  // An empty path: no history.
  explicit HistoryFile(std::string path) : path_(std::move(path)) {}
  // $XDG_STATE_HOME/moonshard/history, or ~/.local/state/moonshard/history; "" if neither variable is set.
  static std::string DefaultPath();

  // Returns the lines, oldest first, at most the last thousand; a much longer file is truncated to these lines. Creates
  // the directory.
  std::vector<std::string> Load();
  // Appends a line, unless it is blank or equal to the line that was appended last. Write errors are ignored.
  void Add(const std::string& line);

 private:
  std::string path_;
  std::string last_;
};

}  // namespace moonshard
