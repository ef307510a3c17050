// A step becomes visible by the rename of its directory (staging.h); `latest` is replaced after that. A kill between
// the two leaves a complete step that `latest` does not name, which Steps() finds. The reverse, a `latest` that names
// an incomplete step, cannot happen.
// One process writes a run directory at a time, by a lock on the directory that ends with the process. Names of steps
// are read strictly: only the exact name that StepDirectoryName makes counts, so a copy or a renamed directory is never
// taken for a step.
#include "engine/io/checkpoint/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <ranges>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/storage/file.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr const char* kLatest = "latest";

Diagnostic Refused(const std::string& path, const std::string& why) {
  Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path + "': " + why);
  d.path = path;
  return d;
}

// A step in `latest`: the name of its directory, and the hash of the name, because one flipped bit can turn the name of
// a step into that of another.
std::string Named(int64_t step) { return StepDirectoryName(step) + " " + HashToText(HashOf(StepDirectoryName(step))); }

// The directory and all above it.
Failure MakeDirectories(Storage& storage, const std::string& path) {
  std::error_code ignored;
  if (path.empty() || fs::is_directory(path, ignored)) return std::nullopt;
  const std::string above = DirectoryOf(path);
  if (above != path) {
    if (Failure failed = MakeDirectories(storage, above)) return failed;
  }
  return storage.MakeDirectory(path);
}

}  // namespace

std::string StepDirectoryName(int64_t step) {
  std::array<char, 40> name = {};
  std::snprintf(name.data(), name.size(), "step_%08lld", static_cast<long long>(step));
  return name.data();
}

std::optional<int64_t> StepOfDirectoryName(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0 || StepDirectoryName(step) != name) return std::nullopt;
  return step;
}

RunDirectory::RunDirectory(RunDirectory&& other) noexcept
    : folder_(std::move(other.folder_)), lock_(std::exchange(other.lock_, -1)) {}

RunDirectory& RunDirectory::operator=(RunDirectory&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(lock_, other.lock_);
  return *this;
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

std::vector<int64_t> RunDirectory::Steps() const {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::optional<int64_t> step = StepOfDirectoryName(at->path().filename().string());
    std::error_code ignored;
    if (step && fs::exists(at->path() / kManifestFile, ignored)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

Result<std::optional<int64_t>> RunDirectory::Latest() const {
  const std::string path = folder_ + "/" + kLatest;
  const Result<File> file = File::Open(path);
  if (!file.ok()) {
    if (file.diagnostics().front().finding == Finding::kFileNotFound) return std::optional<int64_t>();
    return file.diagnostics();
  }
  std::string name(std::min<uint64_t>(file.value().bytes(), 100), '\0');
  if (Failure failed = file.value().Read(0, name.data(), name.size())) return *failed;
  while (name.ends_with('\n')) name.pop_back();
  const size_t space = name.find(' ');
  const std::optional<int64_t> step = StepOfDirectoryName(name.substr(0, space));
  const bool as_written = space == std::string::npos || name == Named(step.value_or(-1));
  std::error_code ignored;
  if (step && as_written && fs::exists(PathOf(*step) + "/" + kManifestFile, ignored)) return step;
  Diagnostic d = MakeDiagnostic(Finding::kBadManifest, "'" + path + "' names no step that is there");
  d.path = path;
  d.declared = JsonQuoted(name);
  d.required = "a directory beside it, as step_00000100";
  const std::vector<int64_t> steps = Steps();
  if (!steps.empty()) d.help = "there is '" + StepDirectoryName(steps.back()) + "': load it by its number";
  return d;
}

std::optional<int64_t> RunDirectory::LastGoodBefore(int64_t step) const {
  const std::vector<int64_t> steps = Steps();
  for (int64_t before : steps | std::views::reverse) {
    if (before < step && !HasErrors(CheckSharded(PathOf(before)))) return before;
  }
  return std::nullopt;
}

Failure RunDirectory::Lock(Storage& storage) {
  if (lock_ >= 0) return std::nullopt;
  if (Failure failed = MakeDirectories(storage, folder_)) return failed;
  lock_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) return Refused(folder_, std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(std::exchange(lock_, -1));
    return Refused(folder_, error == EWOULDBLOCK ? "another process saves to it" : std::strerror(error));
  }
  // What processes that were killed left: steps under construction and unfinished replacements of `latest`.
  std::error_code error;
  std::vector<std::string> left;
  std::vector<std::string> temporary;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const fs::path name = at->path().filename();
    if (name.extension() == ".partial" && StepOfDirectoryName(name.stem().string())) {
      left.push_back((at->path().parent_path() / name.stem()).string());
    } else if (name.string().starts_with(std::string(kLatest) + ".tmp-")) {
      temporary.push_back(at->path().string());
    }
  }
  for (const std::string& place : left) StagingDirectory::RemovePartial(place, storage);
  for (const std::string& path : temporary) (void)storage.RemoveAll(path);
  return std::nullopt;
}

Failure RunDirectory::PointTo(Storage& storage, int64_t step) const {
  return ReplaceFile(storage, folder_ + "/" + kLatest, Named(step) + "\n");
}

Diagnostics RunDirectory::Prune(Storage& storage, int64_t step, int64_t keep) const {
  Diagnostics warnings;
  std::vector<int64_t> before = Steps();
  std::erase_if(before, [&](int64_t other) { return other >= step; });
  const auto gone = static_cast<int64_t>(before.size()) - (keep - 1);
  for (int64_t i = 0; keep > 0 && i < gone; ++i) {
    // Renamed first: a step that is removed in part would look like a complete one.
    const std::string path = PathOf(before[static_cast<size_t>(i)]);
    const std::string partial = path + ".partial";
    Failure failed = storage.RemoveAll(partial);
    if (!failed) failed = storage.Rename(path, partial);
    if (!failed) failed = storage.RemoveAll(partial);
    if (!failed) continue;
    failed->severity = Severity::kWarning;
    warnings.push_back(std::move(*failed));
  }
  return warnings;
}

}  // namespace moonshard
