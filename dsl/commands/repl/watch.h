// FileWatch: detects that files were saved. Compares modification times when it is called, without file system
// notifications, so that it also works if an editor replaces a file or removes it for a moment, and on a network file
// system.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace moonshard {

class FileWatch {
 public:
  // The files to watch, in their current state.
  void Follow(const std::vector<std::string>& files);
  // Whether a file differs from its state at the last call that returned true (or at Follow), and is the same as at the
  // last call. A file that is still being written is therefore not reported: the second call after a change reports it.
  bool Changed();

 private:
  struct Look {
    bool there = false;
    int64_t modified_ns = 0;
    uint64_t bytes = 0;
    uint64_t inode = 0;
    bool operator==(const Look&) const = default;
  };
  static Look LookAt(const std::string& file);

  std::map<std::string, Look> known_;
  std::map<std::string, Look> last_;
};

}  // namespace moonshard
