// HistoryFile: the lines of past sessions, one per line, readable by their owner alone. Sessions that run at the same
// time add their lines one by one, so that no session overwrites another.
#pragma once

#include <string>
#include <vector>

namespace moonshard {

class HistoryFile {
 public:
  // An empty path: no history.
  explicit HistoryFile(std::string path) : path_(std::move(path)) {}
  // $XDG_STATE_HOME/moonshard/history, or ~/.local/state/moonshard/history; "" where neither variable is there.
  static std::string DefaultPath();

  // The lines, oldest first, at most the last thousand; a much longer file is truncated to them. Makes the directory.
  std::vector<std::string> Load();
  // Adds a line, unless it is blank or the one that was added last. Errors of writing are ignored.
  void Add(const std::string& line);

 private:
  std::string path_;
  std::string last_;
};

}  // namespace moonshard
