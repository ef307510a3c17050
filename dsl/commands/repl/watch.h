// FileWatch: whether files were saved. Compares modification times when it is called instead of using notifications of
// the system, so that it works when an editor replaces a file, removes it for a moment, or writes over a network.
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
  // Whether a file differs from its state when this was last true or Follow was called, and has not changed since the
  // last call: a file that is still being written is not read. So the second call after a change sees it.
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
