#include "dsl/commands/train/rows.h"

#include <algorithm>
#include <filesystem>

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kHashedEnd = uint64_t{4} << 20;  // bytes at each end of a file that are part of its identity

}  // namespace

std::vector<std::string> FilesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with(".")) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

// All bytes of a file of up to two ends: data of any size opens at once.
std::optional<Diagnostic> HashEnds(const File& file, uint64_t& hash) {
  const uint64_t head = std::min(file.bytes(), kHashedEnd);
  const uint64_t tail = std::min(file.bytes() - head, kHashedEnd);
  std::string bytes = std::to_string(file.bytes()) + " ";
  const size_t begin = bytes.size();
  bytes.resize(begin + head + tail);
  if (auto error = file.Read(0, bytes.data() + begin, head)) return error;
  if (auto error = file.Read(file.bytes() - tail, bytes.data() + begin + head, tail)) return error;
  hash = HashOf(bytes);
  return std::nullopt;
}

Diagnostic BadData(const std::string& path, const std::string& message, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = path;
  d.required = required;
  return d;
}

}  // namespace moonshard
