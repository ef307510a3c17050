// FileWatch: whether files were saved. Looks at them when asked instead of waiting for the system to tell: so an editor may
// replace a file, remove it for a moment, or write it over a network.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace moonshard {

class FileWatch {
 public:
  // The files to look at from now on, as they are now.
  void Follow(const std::vector<std::string>& files);
  // Whether one differs from when this was last true or Follow was called, and has stayed the same since the last call: a
  // file that is still being written is not read half. So a change is seen by the second call after it.
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
