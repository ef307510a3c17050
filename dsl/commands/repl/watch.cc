#include "dsl/commands/repl/watch.h"

#include <sys/stat.h>

namespace moonshard {

FileWatch::Look FileWatch::LookAt(const std::string& file) {
  struct stat info {};
  if (stat(file.c_str(), &info) != 0) return {};
  return {true, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec,
          static_cast<uint64_t>(info.st_size), info.st_ino};
}

void FileWatch::Follow(const std::vector<std::string>& files) {
  known_.clear();
  for (const std::string& file : files) known_[file] = LookAt(file);
  last_ = known_;
}

// Two calls with the same state are required before a change is reported: editors write a file in several steps, and
// the first step would be an empty or partial plan.
bool FileWatch::Changed() {
  std::map<std::string, Look> now;
  bool all_there = true;
  for (const auto& [file, look] : known_) all_there &= (now[file] = LookAt(file)).there;
  const bool settled = now == last_ && all_there;
  last_ = now;
  if (!settled || now == known_) return false;
  known_ = now;
  return true;
}

}  // namespace moonshard
