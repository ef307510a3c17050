#include "dsl/language/eval/files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPlans = "plans/";
constexpr std::string_view kSuffix = ".lua";

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
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return fail(Finding::kFileNotFound, "no such file");
  // Reading a pipe or a device could wait forever.
  if (!fs::is_regular_file(status)) return fail(Finding::kFileUnreadable, "not a regular file");
  const uintmax_t size = fs::file_size(path, error);
  if (!error && size > most_bytes) {
    return fail(Finding::kFileUnreadable,
                "the file has " + std::to_string(size) + " bytes; at most " + std::to_string(most_bytes) + " are read");
  }
  std::ifstream stream(path, std::ios::binary);
  SourceFile file;
  file.text.resize(static_cast<size_t>(error ? 0 : size));
  if (error || !stream || !stream.read(file.text.data(), static_cast<std::streamsize>(file.text.size()))) {
    return fail(Finding::kFileUnreadable, "the file cannot be read");
  }
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
