#include "dsl/language/eval/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPlans = "plans/";
constexpr std::string_view kSuffix = ".lua";

// A descriptor, closed at the end.
class OpenedSource {
 public:
  // Does not wait for the writer of a pipe.
  explicit OpenedSource(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~OpenedSource() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenedSource(const OpenedSource&) = delete;
  OpenedSource& operator=(const OpenedSource&) = delete;
  int descriptor() const { return descriptor_; }

  // The file up to its end, or `most` bytes of it; nothing where it cannot be read.
  std::optional<std::string> Read(size_t most) const {
    std::string text;
    while (text.size() < most) {
      constexpr size_t kPart = size_t{1} << 16;
      const size_t had = text.size();
      text.resize(std::min(most, had + kPart));
      const ssize_t count = ::read(descriptor_, text.data() + had, text.size() - had);
      text.resize(had + static_cast<size_t>(std::max<ssize_t>(count, 0)));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return std::nullopt;
      if (count == 0) break;
    }
    return text;
  }

 private:
  int descriptor_;
};

}  // namespace

std::optional<SourceFile> FindEmbedded(const std::string& path) {
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.path == path) return SourceFile{path, "", std::string(file.text), path.starts_with("stdlib/")};
  }
  return std::nullopt;
}

std::vector<std::string> EmbeddedPlanNames() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (!file.path.starts_with(kPlans) || file.path == "plans/index.lua") continue;
    names.emplace_back(file.path.substr(kPlans.size(), file.path.size() - kPlans.size() - kSuffix.size()));
  }
  return names;
}

Result<SourceFile> ReadSource(const std::string& path, size_t most_bytes) {
  const auto fail = [&](Finding finding, const std::string& message) {
    SourceSpan where;
    where.file = path;
    return MakeDiagnostic(finding, message, where);
  };
  const OpenedSource source(path);
  if (source.descriptor() < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP;
    return missing ? fail(Finding::kFileNotFound, "no such file")
                   : fail(Finding::kFileUnreadable, "the file cannot be read");
  }
  struct stat status = {};
  if (::fstat(source.descriptor(), &status) != 0) return fail(Finding::kFileUnreadable, "the file cannot be read");
  // Reading a pipe or a device could wait forever.
  if (!S_ISREG(status.st_mode)) return fail(Finding::kFileUnreadable, "not a regular file");
  // One byte more than may be there: a file of /proc has no size.
  std::optional<std::string> text = source.Read(most_bytes + 1);
  if (!text) return fail(Finding::kFileUnreadable, "the file cannot be read");
  if (const size_t size = std::max(text->size(), static_cast<size_t>(status.st_size)); size > most_bytes) {
    return fail(Finding::kFileUnreadable, "the file has " + std::to_string(size) + " bytes; at most " +
                                              std::to_string(most_bytes) + " are allowed");
  }
  SourceFile file;
  file.text = *std::move(text);
  file.name = path;
  const std::string folder = fs::path(path).parent_path().string();
  file.folder = folder.empty() ? "." : folder;
  return file;
}

// Both paths are resolved before they are compared, component by component: a text comparison would accept a link that
// leads out of the directory, and `/plans-other` as being inside `/plans`. The path that is returned is the one that
// was asked for, not the resolved one, because it appears in diagnostics.
std::optional<std::string> FindInside(const std::string& folder, const std::string& relative) {
  const fs::path wanted(relative);
  if (folder.empty() || wanted.is_absolute() || std::ranges::find(wanted, "..") != wanted.end()) return std::nullopt;
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return std::nullopt;
  const fs::path real = fs::canonical(fs::path(folder) / wanted, error);
  if (error || !fs::is_regular_file(real, error)) return std::nullopt;
  const auto [end, rest] = std::ranges::mismatch(root, real);
  if (end != root.end()) return std::nullopt;
  return (fs::path(folder) / wanted).lexically_normal().string();
}

}  // namespace moonshard
