// FileWatch: detects that files were saved. Each call of Changed compares modification time, size and inode of every
// file; file system notifications are not used. Changes are therefore also detected if an editor replaces a file or
// removes it for a moment, and on a network file system.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace moonshard {

class FileWatch {
 public:
  // Sets the files to watch and records their current state.
  void Follow(const std::vector<std::string>& files);
  // Returns whether some file has changed since Changed last returned true (or since Follow), provided that all files
  // exist and none has changed since the previous call. A file that is still being written is therefore not reported:
  // the second call after a change reports it.
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
